// The small kernels after and before the large one: they combine what the splits of a decoding launch found,
// and plan the order of a ragged batch.
#pragma once

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/schedule/tile_plan.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A warp handles a row and head of the output. Splits that saw no key have an lse of minus infinity, and so a
// weight of 0.
class CombineSplits {
 public:
  SWITCHYARD_DEVICE explicit CombineSplits(const CombineSplitsParams& params) : params_(params) {}

  SWITCHYARD_DEVICE void run() {
    const uint32_t num_warps = static_cast<uint32_t>(target::num_blocks() * target::num_warps());
    const uint32_t* rows = params_.row_offsets;
    const uint32_t first = rows == nullptr ? 0 : rows[0] * params_.num_heads;
    const uint32_t end = rows == nullptr ? params_.num_outputs : rows[params_.batch_size] * params_.num_heads;
    for (uint32_t output_idx =
             first + static_cast<uint32_t>(target::block_idx() * target::num_warps() + target::warp_idx());
         output_idx < end; output_idx += num_warps)
      combine(output_idx);
  }

 private:
  static constexpr int kColumnsPerLane = 2;

  SWITCHYARD_DEVICE float lse_of(uint32_t split, uint32_t output_idx) const {
    if (split >= params_.num_splits) return kMinusInfinity;
    return target::ld(&params_.partial_lse[uint64_t{split} * params_.num_outputs + output_idx]);
  }

  SWITCHYARD_DEVICE void combine(uint32_t output_idx) {
    const uint32_t lane = static_cast<uint32_t>(target::lane_idx());
    float max = kMinusInfinity;
    for (uint32_t split = lane; split < params_.num_splits; split += kWarpSize)
      max = larger(max, lse_of(split, output_idx));
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
      max = larger(max, target::shuffle_xor(max, distance));
    if (max == kMinusInfinity) max = 0;
    float sum = 0;
    for (uint32_t split = lane; split < params_.num_splits; split += kWarpSize)
      sum += expf(lse_of(split, output_idx) - max);
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) sum += target::shuffle_xor(sum, distance);
    if (lane == 0 && params_.lse != nullptr)
      target::st(&params_.lse[output_idx], sum == 0 ? kMinusInfinity : max + logf(sum));
    const float factor = sum == 0 ? 0.0f : target::divide(1.0f, sum);
    for (uint32_t column = lane * kColumnsPerLane; column < params_.head_dim;
         column += kWarpSize * kColumnsPerLane)
      combine_columns(output_idx, column, max, factor);
  }

  SWITCHYARD_DEVICE void combine_columns(uint32_t output_idx, uint32_t column, float max, float factor) {
    float sums[kColumnsPerLane] = {};
    for (uint32_t first_split = 0; first_split < params_.num_splits; first_split += kWarpSize) {
      const float weight =
          expf(lse_of(first_split + static_cast<uint32_t>(target::lane_idx()), output_idx) - max);
      const uint32_t num_left = params_.num_splits - first_split;
      for (uint32_t i = 0; i < (num_left < kWarpSize ? num_left : kWarpSize); ++i) {
        const float weight_of_split = target::shuffle(weight, static_cast<int>(i));
        const float* row = params_.partial_output +
                           (uint64_t{first_split + i} * params_.num_outputs + output_idx) * params_.head_dim +
                           column;
        for (int c = 0; c < kColumnsPerLane; ++c) sums[c] += weight_of_split * target::ld(&row[c]);
      }
    }
    bf16* output = params_.output + uint64_t{output_idx} * params_.head_dim + column;
    for (int c = 0; c < kColumnsPerLane; ++c) target::st(&output[c], to_bf16(sums[c] * factor));
  }

  SWITCHYARD_DEVICE static float larger(float a, float b) { return a > b ? a : b; }
  static constexpr float kMinusInfinity = -__builtin_huge_valf();

  const CombineSplitsParams& params_;
};

SWITCHYARD_KERNEL void combine_splits_kernel(CombineSplitsParams params) {
  target::grid_dependency_wait();
  target::grid_dependency_launch();
  CombineSplits(params).run();
}

SWITCHYARD_KERNEL void plan_tiles_kernel(PlanTilesParams params) {
  target::grid_dependency_wait();
  target::grid_dependency_launch();
  const uint32_t num_threads = static_cast<uint32_t>(target::num_blocks() * target::num_threads());
  for (uint32_t i = static_cast<uint32_t>(target::block_idx() * target::num_threads() + target::thread_idx());
       i < params.batch_size; i += num_threads) {
    const auto num_keys_of = [&](uint32_t prompt_idx) { return params.keys.num_keys(prompt_idx); };
    if (sorts_sequences(params.order))
      plan_sequence<MHASchedule::LPT>(params.row_offsets, params.batch_size, params.tile_rows, i, params.plan,
                                      num_keys_of);
    else
      plan_sequence<MHASchedule::DEFAULT>(params.row_offsets, params.batch_size, params.tile_rows, i,
                                          params.plan, num_keys_of);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
