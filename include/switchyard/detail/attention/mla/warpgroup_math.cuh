// What a consumer of an MLA block computes, on Hopper's matrix unit: beside what every consumer does, the
// scores over all columns of a latent, and the way of weights from one consumer to the other. Both hold the
// same rows in the same registers, so that a thread hands over to the thread of its own number.
#pragma once

#include "switchyard/detail/attention/mla/shared.hpp"
#include "switchyard/detail/attention/warpgroup_math.cuh"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class MlaMath : public WarpgroupMath<Config> {
  using Base = WarpgroupMath<Config>;

 public:
  using Base::Base;

  // wait_for(strip) returns when the strip of the latents has been loaded.
  template <typename WaitFor>
  SWITCHYARD_DEVICE void start_scores_of(const unsigned char* queries, const unsigned char* latents,
                                         WaitFor wait_for) {
    target::hold_registers(this->scores_);
    const uint64_t query_operand = target::matrix_operand(queries, Base::kGroupBytes, 0);
    const uint64_t key_operand = target::matrix_operand(latents, Base::kGroupBytes, 0);
    SWITCHYARD_UNROLL
    for (int strip = 0; strip < Config::kNumStrips; ++strip) {
      const LatentStrip panels = Config::panels_of(strip);
      wait_for(strip);
      target::matrix_fence();
      SWITCHYARD_UNROLL
      for (int i = 0; i < panels.num_panels * 4; ++i) {
        const int panel = panels.first_panel + i / 4, in_panel = i % 4 * 2;
        target::MatrixUnit<Config::kTileKeys>::multiply(
            this->scores_, query_operand + panel * (Config::kTileRows * kPanelRowBytes / 16) + in_panel,
            key_operand + panel * (Config::kTileKeys * kPanelRowBytes / 16) + in_panel, strip + i != 0);
      }
    }
    target::matrix_commit();
    target::hold_registers(this->scores_);
  }

  SWITCHYARD_DEVICE void publish_weights(MlaShared<Config>& shared) const {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumUnits; ++i) {
      const uint32_t* words = this->weights_ + i * 4;
      target::st_16(unit(shared, i), Vec16{{words[0], words[1], words[2], words[3]}});
    }
    SWITCHYARD_UNROLL
    for (int half = 0; half < Base::kRowsPerThread; ++half)
      target::st(&shared.shrinks[thread()][half], this->shrink_[half]);
  }
  SWITCHYARD_DEVICE void receive_weights(MlaShared<Config>& shared) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumUnits; ++i) {
      const Vec16 words = target::ld_16(unit(shared, i));
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) this->weights_[i * 4 + j] = words.words[j];
    }
    SWITCHYARD_UNROLL
    for (int half = 0; half < Base::kRowsPerThread; ++half)
      this->shrink_[half] = target::ld(&shared.shrinks[thread()][half]);
  }

  SWITCHYARD_DEVICE void publish_sums(MlaShared<Config>& shared) const {
    RowSums sums;
    SWITCHYARD_UNROLL
    for (int half = 0; half < Base::kRowsPerThread; ++half) {
      sums.max[half] = this->row_max_[half];
      sums.sum[half] = this->row_sum_[half];
    }
    target::st(reinterpret_cast<RowSums*>(shared.weights) + thread(), sums);
  }
  SWITCHYARD_DEVICE void receive_sums(MlaShared<Config>& shared) {
    const RowSums sums = target::ld(reinterpret_cast<const RowSums*>(shared.weights) + thread());
    SWITCHYARD_UNROLL
    for (int half = 0; half < Base::kRowsPerThread; ++half) {
      this->row_max_[half] = sums.max[half];
      this->row_sum_[half] = sums.sum[half];
    }
  }

 private:
  static constexpr int kNumUnits = Base::kNumScores / 2 / 4;  // of 16 bytes

  SWITCHYARD_DEVICE static int thread() { return target::thread_idx() % kWarpgroupThreads; }
  // The units of one number lie side by side, so that neighbouring threads use neighbouring banks.
  SWITCHYARD_DEVICE static unsigned char* unit(MlaShared<Config>& shared, int unit_idx) {
    return shared.weights + (unit_idx * kWarpgroupThreads + thread()) * static_cast<int>(sizeof(Vec16));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
