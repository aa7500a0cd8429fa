// What a consumer of an MLA block computes, on the CPU: the same steps as mla/warpgroup_math.cuh, where half
// of a warp's lanes have a row each.
#pragma once

#include "switchyard/detail/attention/host_math.hpp"
#include "switchyard/detail/attention/mla/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class MlaMath : public WarpgroupMath<Config> {
  using Base = WarpgroupMath<Config>;

 public:
  using Base::Base;

  template <typename WaitFor>
  void start_scores_of(const unsigned char* queries, const unsigned char* latents, WaitFor wait_for) {
    constexpr int kUnits = Config::kLatentDim / 8;
    for (int strip = 0; strip < Config::kNumStrips; ++strip) wait_for(strip);
    if (!Base::has_row()) return;
    float query[Config::kLatentDim];
    for (int unit = 0; unit < kUnits; ++unit)
      Base::template load<Config::kTileRows>(queries, Base::row(), unit, query + unit * 8);
    for (int key = 0; key < Config::kTileKeys; ++key) {
      float sum = 0;
      for (int unit = 0; unit < kUnits; ++unit) {
        float columns[8];
        Base::template load<Config::kTileKeys>(latents, key, unit, columns);
        sum = add_products<8>(sum, query + unit * 8, columns);
      }
      this->scores_[key] = sum;
    }
  }

  void publish_weights(MlaShared<Config>& shared) const {
    if (!Base::has_row()) return;
    for (int unit = 0; unit < kUnitsOfWeights; ++unit) {
      Vec16 packed;
      for (int i = 0; i < 4; ++i)
        packed.words[i] =
            target::to_bf16x2(this->weights_[unit * 8 + 2 * i], this->weights_[unit * 8 + 2 * i + 1]);
      target::st_16(weights_at(shared, unit), packed);
    }
    target::st(&shared.shrinks[Base::row()][0], this->shrink_);
  }
  void receive_weights(MlaShared<Config>& shared) {
    if (!Base::has_row()) return;
    for (int unit = 0; unit < kUnitsOfWeights; ++unit)
      unpack_bf16(target::ld_16(weights_at(shared, unit)), this->weights_ + unit * 8);
    this->shrink_ = target::ld(&shared.shrinks[Base::row()][0]);
  }

  void publish_sums(MlaShared<Config>& shared) const {
    if (!Base::has_row()) return;
    const RowSums sums{{this->row_max_, 0}, {this->row_sum_, 0}};
    target::st(reinterpret_cast<RowSums*>(shared.weights) + Base::row(), sums);
  }
  void receive_sums(MlaShared<Config>& shared) {
    if (!Base::has_row()) return;
    const RowSums sums = target::ld(reinterpret_cast<const RowSums*>(shared.weights) + Base::row());
    this->row_max_ = sums.max[0];
    this->row_sum_ = sums.sum[0];
  }

 private:
  static constexpr int kUnitsOfWeights = Config::kTileKeys / 8;

  static unsigned char* weights_at(MlaShared<Config>& shared, int unit) {
    return shared.weights + Base::row() * (Config::kTileKeys * 2) + unit * static_cast<int>(sizeof(Vec16));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
