// What one consumer computes, on the CPU: the same steps as warpgroup_math.cuh in plain loops, where half of
// a warp's lanes have a row each. What is in flight there is complete here when the call returns.
#pragma once

#include <cmath>
#include <limits>

#include "switchyard/detail/attention/shared.hpp"
#include "switchyard/detail/target/host_arithmetic.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class WarpgroupMath {
 public:
  explicit WarpgroupMath(float scale_log2) : scale_log2_(scale_log2) {}

  void begin() {
    row_max_ = kMinusInfinity;
    row_sum_ = 0;
    for (float& output : outputs_) output = 0;
  }

  void start_scores(const unsigned char* queries, const unsigned char* keys) {
    start_scores_of_part(queries, keys, Config::kTileKeys);
  }
  // Computes the scores of at least the block's first num_keys keys; the others must be masked.
  void start_scores_of_part(const unsigned char* queries, const unsigned char* keys, int num_keys) {
    if (!has_row()) return;
    for (float& score : scores_) score = std::numeric_limits<float>::quiet_NaN();  // if it is not
    float query[Config::kHeadDim];
    for (int unit = 0; unit < kUnits; ++unit) load<Config::kTileRows>(queries, row(), unit, query + unit * 8);
    for (int key = 0; key < end_of_parts(num_keys); ++key) {
      float sum = 0;
      for (int unit = 0; unit < kUnits; ++unit) {
        float columns[8];
        load<Config::kTileKeys>(keys, key, unit, columns);
        sum = add_products<8>(sum, query + unit * 8, columns);
      }
      scores_[key] = sum;
    }
  }
  // Adds the values of at least the block's first num_keys keys; the others' weights are 0.
  void start_sums(const unsigned char* values, int num_keys) {
    if (!has_row()) return;
    for (int key = 0; key < end_of_parts(num_keys); ++key)
      for (int unit = 0; unit < kUnits; ++unit) {
        float columns[8];
        load<Config::kTileKeys>(values, key, unit, columns);
        add_scaled<8>(outputs_ + unit * 8, weights_[key], columns);
      }
  }
  template <int kPending>
  void wait_scores() {}
  template <int kPending>
  void wait_sums() {}

  void cap_scores(float factor) {
    if (!has_row()) return;
    for (float& score : scores_) score = 1 - 2 / (1 + std::exp2(score * factor));
  }

  // Masks the scores of keys from end_of(row) on, or before first_of(row), both counted from the block's
  // first key.
  template <typename EndOf>
  void mask_from(EndOf end_of) {
    if (!has_row()) return;
    for (int key = std::max(end_of(row()), 0); key < Config::kTileKeys; ++key) scores_[key] = kMinusInfinity;
  }
  template <typename FirstOf>
  void mask_before(FirstOf first_of) {
    if (!has_row()) return;
    for (int key = 0; key < std::min(first_of(row()), Config::kTileKeys); ++key)
      scores_[key] = kMinusInfinity;
  }

  void exponentiate() {
    if (!has_row()) return;
    float max = row_max_;
    for (const float score : scores_) max = std::max(max, score);
    const float scaled_max = max == kMinusInfinity ? 0.0f : max * scale_log2_;
    shrink_ = max == row_max_ ? 1.0f : std::exp2(row_max_ * scale_log2_ - scaled_max);
    row_max_ = max;
    row_sum_ *= shrink_;
    for (float& score : scores_) row_sum_ += score = std::exp2(score * scale_log2_ - scaled_max);
  }
  void take_weights() {
    if (!has_row()) return;
    for (int key = 0; key < Config::kTileKeys; ++key) weights_[key] = to_float(to_bf16(scores_[key]));
  }
  void shrink_sums() {
    for (float& output : outputs_) output *= shrink_;
  }

  template <typename StoreLse, typename SinkOf>
  void finish(StoreLse store_lse, SinkOf sink_of) {
    if (!has_row()) return;
    constexpr float kLn2 = 0.69314718055994531f;
    const float max = row_max_ * scale_log2_, sink = sink_of(row()) / kLn2;
    const float top = std::max(max, sink) == kMinusInfinity ? 0.0f : std::max(max, sink);
    const float shrink = std::exp2(max - top), sum = row_sum_ * shrink + std::exp2(sink - top);
    store_lse(row(), sum == 0 ? kMinusInfinity : (top + std::log2(sum)) * kLn2);
    for (float& output : outputs_) output = sum == 0 ? 0.0f : output * shrink / sum;
  }
  template <typename AddressOf>
  void store_rows_of(AddressOf address_of) const {
    bf16* address = has_row() ? address_of(row()) : nullptr;
    for (int i = 0; address != nullptr && i < Config::kHeadDim; ++i)
      target::st(address + i, to_bf16(outputs_[i]));
  }
  void store_rows_through(unsigned char*, bf16* first, int64_t stride, int num_rows) const {
    const int row_of_warp = target::lane_idx();
    if (!has_row() || row_of_warp >= num_rows) return;
    for (int i = 0; i < Config::kHeadDim; ++i)
      target::st(first + row_of_warp * stride + i, to_bf16(outputs_[i]));
  }
  template <typename AddressOf>
  void store_floats(AddressOf address_of) const {
    float* address = has_row() ? address_of(row()) : nullptr;
    for (int i = 0; address != nullptr && i < Config::kHeadDim; ++i) target::st(address + i, outputs_[i]);
  }

 protected:
  static constexpr int kUnits = Config::kHeadDim / 8;  // of a row: 8 columns, 16 bytes
  static constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

  static int end_of_parts(int num_keys) {
    constexpr int kPart = Config::kPartKeys;
    const int end = num_keys <= kPart ? kPart : (num_keys - 1) / kPart * kPart + kPart;
    return end < Config::kTileKeys ? end : Config::kTileKeys;
  }
  static bool has_row() { return target::lane_idx() < 16; }
  static int row() { return target::thread_idx() % kWarpgroupThreads / kWarpSize * 16 + target::lane_idx(); }

  template <int kRows>
  static int offset(int row, int unit) {
    return (unit / 8 * kRows + row) * kPanelRowBytes + unit % 8 * 16;
  }
  template <int kRows>
  static void load(const unsigned char* tile, int row, int unit, float* columns) {
    unpack_bf16(target::matrix_ld_16(tile + offset<kRows>(row, unit)), columns);
  }

  float scale_log2_;
  float scores_[Config::kTileKeys];
  float weights_[Config::kTileKeys];
  float outputs_[Config::kHeadDim];
  float row_max_ = kMinusInfinity;
  float row_sum_ = 0;
  float shrink_ = 1;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
