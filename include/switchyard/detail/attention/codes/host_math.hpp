// What one warp computes of fp8 keys and values, on the CPU: the same steps as warp_math.cuh in plain loops,
// where half of the lanes have a row each.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "switchyard/detail/attention/shared.hpp"
#include "switchyard/detail/target/host_arithmetic.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class WarpMath {
 public:
  void begin(const unsigned char* queries, int first_row, int num_rows, float key_scale,
             const AttentionSettings& settings) {
    first_row_ = first_row;
    cap_factor_ = settings.cap_factor * key_scale;
    scale_ = std::max(settings.cap_factor > 0 ? settings.scale_log2 : settings.scale_log2 * key_scale,
                      kLeastScale);
    row_max_ = kMinusInfinity;
    row_sum_ = 0;
    for (float& output : outputs_) output = 0;
    for (int i = 0; has_row() && i < kDim; i += 8) {
      const Vec16 loaded =
          row() < num_rows
              ? target::ld_16(queries + (i / 64 * Config::kTileRows + row()) * kPanelRowBytes + i % 64 * 2)
              : Vec16{};
      unpack_bf16(loaded, queries_ + i);
    }
  }

  void score(const unsigned char* keys, int first_key) {
    if (!has_row()) return;
    for (int key = 0; key < kKeysOfWarp; ++key) {
      float columns[kDim];
      load(keys, first_key + key, columns);
      scores_[key] = 0;
      for (int i = 0; i < kDim; i += 8)
        scores_[key] = add_products<8>(scores_[key], queries_ + i, columns + i);
    }
  }
  void cap_scores() {
    if (!has_row()) return;
    for (float& score : scores_) score = 1 - 2 / (1 + std::exp2(score * cap_factor_));
  }
  template <typename FirstOf, typename EndOf>
  void mask(FirstOf first_of, EndOf end_of) {
    if (!has_row()) return;
    const int first = first_of(row()), end = end_of(row());
    for (int key = 0; key < kKeysOfWarp; ++key)
      if (key < first || key >= end) scores_[key] = kMinusInfinity;
  }
  void weigh() {
    if (!has_row()) return;
    const float old_max = row_max_;
    for (const float score : scores_) row_max_ = std::max(row_max_, score);
    shrink(shrink_from(old_max));
    const float scaled_max = row_max_ == kMinusInfinity ? 0.0f : row_max_ * scale_;
    for (float& score : scores_) row_sum_ += score = std::exp2(score * scale_ - scaled_max);
  }
  template <bool kIsMasked>
  void sum(const unsigned char* values, int first_key, int num_keys) {
    if (!has_row()) return;
    for (int key = 0; key < kKeysOfWarp && (!kIsMasked || key < num_keys); ++key) {
      float columns[kDim];
      load(values, first_key + key, columns);
      for (int i = 0; i < kDim; i += 8) add_scaled<8>(outputs_ + i, scores_[key], columns + i);
    }
  }

  void store_sums(unsigned char* slot) const {
    if (!has_row()) return;
    float* place = place_in(slot);
    for (int i = 0; i < kDim; ++i) target::st(place + i, outputs_[i]);
    target::st(place + kDim, row_max_);
    target::st(place + kDim + 1, row_sum_);
  }
  void merge(unsigned char* slot) {
    if (!has_row()) return;
    const float* place = place_in(slot);
    const float other_max = target::ld(place + kDim), old_max = row_max_;
    row_max_ = std::max(old_max, other_max);
    shrink(shrink_from(old_max));
    const float factor = shrink_from(other_max);
    row_sum_ += target::ld(place + kDim + 1) * factor;
    for (int i = 0; i < kDim; ++i) outputs_[i] += target::ld(place + i) * factor;
  }

  template <typename StoreLse, typename SinkOf>
  void finish(StoreLse store_lse, SinkOf sink_of, float value_scale) {
    if (!has_row()) return;
    constexpr float kLn2 = 0.69314718055994531f;
    const float max = row_max_ * scale_, sink = sink_of(row()) / kLn2;
    const float top = std::max(max, sink) == kMinusInfinity ? 0.0f : std::max(max, sink);
    const float shrink = std::exp2(max - top), sum = row_sum_ * shrink + std::exp2(sink - top);
    store_lse(row(), sum == 0 ? kMinusInfinity : (top + std::log2(sum)) * kLn2);
    for (float& output : outputs_) output = sum == 0 ? 0.0f : output * shrink / sum * value_scale;
  }
  template <typename AddressOf>
  void store_rows_of(AddressOf address_of) const {
    bf16* address = has_row() ? address_of(row()) : nullptr;
    for (int i = 0; address != nullptr && i < kDim; ++i) target::st(address + i, to_bf16(outputs_[i]));
  }
  template <typename AddressOf>
  void store_floats(AddressOf address_of) const {
    float* address = has_row() ? address_of(row()) : nullptr;
    for (int i = 0; address != nullptr && i < kDim; ++i) target::st(address + i, outputs_[i]);
  }

 private:
  static constexpr int kDim = Config::kHeadDim;
  static constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  static constexpr float kLeastScale = 1e-37f;

  static bool has_row() { return target::lane_idx() < kRowsOfWarp; }
  int row() const { return first_row_ + target::lane_idx(); }
  static float* place_in(unsigned char* slot) {
    return reinterpret_cast<float*>(slot) + target::lane_idx() * (kDim + 2);
  }
  static void load(const unsigned char* codes, int key, float (&columns)[kDim]) {
    for (int i = 0; i < kDim; i += 16) {
      const Vec16 loaded = target::ld_16(
          codes + (i / kPanelRowBytes * Config::kTileKeys + key) * kPanelRowBytes + i % kPanelRowBytes);
      for (int j = 0; j < 16; j += 2)
        target::from_e4m3x2(static_cast<uint16_t>(loaded.words[j / 4] >> j % 4 * 8), columns[i + j],
                            columns[i + j + 1]);
    }
  }
  float shrink_from(float other_max) const {
    return other_max == row_max_ ? 1.0f : std::exp2((other_max - row_max_) * scale_);
  }
  void shrink(float factor) {
    row_sum_ *= factor;
    for (float& output : outputs_) output *= factor;
  }

  int first_row_ = 0;
  float scale_ = 0, cap_factor_ = 0, row_max_ = 0, row_sum_ = 0;
  float queries_[kDim];
  float scores_[kKeysOfWarp];
  float outputs_[kDim];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
