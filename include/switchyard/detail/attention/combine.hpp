// What the splits of a decoding launch found, combined: a warp for each row and head of the output.
#pragma once

#include <cmath>

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline constexpr int kMaxSplits = kAttentionLimits.max_splits;

// What the splits of all rows and heads left. An output is a row and a head.
struct SplitResults {
  const float* partial_output;  // [split][output][head_dim]
  const float* partial_lse;     // [split][output]
  bf16* output;                 // [output][head_dim]
  float* lse;                   // [output], or null
  uint32_t num_splits;          // that count, at most kMaxSplits
  uint32_t num_outputs;

  SWITCHYARD_DEVICE uint64_t partial_idx(uint32_t split, uint32_t output_idx) const {
    return uint64_t{split} * num_outputs + output_idx;
  }
};

// Weighs the splits of one output. A split that saw no key has an lse of minus infinity, and so a weight of
// 0. The sink is one more score, without a value; minus infinity: there is none. Loads are in flight
// together: this is the end of a launch, which nothing overlaps.
template <int kHeadDim>
SWITCHYARD_DEVICE void combine_row(const SplitResults& splits, uint32_t output_idx, float sink) {
  constexpr float kMinusInfinity = -__builtin_huge_valf();
  constexpr int kLsePerLane = kMaxSplits / kWarpSize, kColumns = kHeadDim / kWarpSize;
  constexpr int kAtOnce = kColumns > 8 ? 4 : 8;  // loads are as many as there are registers for
  struct alignas(kColumns < 4 ? 8 : 16) Columns {
    float values[kColumns];
  };
  const uint32_t lane = static_cast<uint32_t>(target::lane_idx());
  const float* column = splits.partial_output + uint64_t{output_idx} * kHeadDim + lane * kColumns;
  // Past the last split the first one is loaded, with a weight of 0.
  Columns loaded[kAtOnce];
  const auto load = [&](uint32_t first_split) {
    SWITCHYARD_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t split = first_split + k < splits.num_splits ? first_split + k : 0;
      loaded[k] =
          target::ld(reinterpret_cast<const Columns*>(column + splits.partial_idx(split, 0) * kHeadDim));
    }
  };
  float weights[kLsePerLane], max = kMinusInfinity, sum = 0;
  SWITCHYARD_UNROLL
  for (int i = 0; i < kLsePerLane; ++i) {
    const uint32_t split = static_cast<uint32_t>(i) * kWarpSize + lane;
    weights[i] = split < splits.num_splits
                     ? target::ld(&splits.partial_lse[splits.partial_idx(split, output_idx)])
                     : kMinusInfinity;
  }
  load(0);
  SWITCHYARD_UNROLL
  for (int i = 0; i < kLsePerLane; ++i) max = weights[i] > max ? weights[i] : max;
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const float other = target::shuffle_xor(max, distance);
    max = other > max ? other : max;
  }
  max = sink > max ? sink : max;
  if (max == kMinusInfinity) max = 0;
  SWITCHYARD_UNROLL
  for (int i = 0; i < kLsePerLane; ++i) sum += weights[i] = expf(weights[i] - max);
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) sum += target::shuffle_xor(sum, distance);
  sum += expf(sink - max);
  const float factor = sum == 0 ? 0.0f : target::divide(1.0f, sum);

  float sums[kColumns] = {};
  SWITCHYARD_UNROLL
  for (int i = 0; i < kLsePerLane; ++i) {
    const uint32_t first_split = static_cast<uint32_t>(i) * kWarpSize;
    if (first_split >= splits.num_splits) break;
    SWITCHYARD_ROLLED
    for (uint32_t j = 0; j < kWarpSize && first_split + j < splits.num_splits; j += kAtOnce) {
      if (first_split + j > 0) load(first_split + j);
      SWITCHYARD_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const float weight = target::shuffle(weights[i], static_cast<int>(j + k)) * factor;
        SWITCHYARD_UNROLL
        for (int c = 0; c < kColumns; ++c) sums[c] += weight * loaded[k].values[c];
      }
    }
  }
  if (lane == 0 && splits.lse != nullptr)
    target::st(&splits.lse[output_idx], sum == 0 ? kMinusInfinity : max + logf(sum));
  struct alignas(kColumns < 8 ? 2 * kColumns : 16) OutputColumns {
    bf16 values[kColumns];
  } output;
  SWITCHYARD_UNROLL
  for (int c = 0; c < kColumns; ++c) output.values[c] = to_bf16(sums[c]);
  target::st(reinterpret_cast<OutputColumns*>(splits.output + uint64_t{output_idx} * kHeadDim) + lane,
             output);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
