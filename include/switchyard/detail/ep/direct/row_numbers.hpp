// Which row each (token, k) of a block gets: a number among the rank's rows of the expert, in the order of
// (token, k), and, once all counts are known, a row on the expert's owner.
#pragma once

#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/direct/staged_tokens.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed>
struct RowNumbers {
  const ShapeOf<Fixed> shape;
  const int32_t* topk_ids;
  uint32_t* row_of;  // [id]
  const TokenRange tokens;
  DirectDispatchShared& shared;

  SWITCHYARD_DEVICE int first_id() const { return tokens.begin * shape.top_k(); }
  SWITCHYARD_DEVICE int id_end() const { return tokens.end * shape.top_k(); }

  // The warp that numbers rows; the others, if there are any, wait for the counts.
  SWITCHYARD_DEVICE bool is_ranker() const { return target::warp_idx() == target::num_warps() - 1; }

  // The ids of the block that the ranker prefetches at once.
  struct RankedIds {
    static constexpr int kPerLane = kEpKernelSizes.prefetched_ids;
    int ids[kPerLane];
  };
  SWITCHYARD_DEVICE RankedIds load_ranked(int first_id) const {
    RankedIds ranked;
    for (int i = 0; i < RankedIds::kPerLane; ++i) {
      const int id_idx = first_id + i * kWarpSize + target::lane_idx();
      ranked.ids[i] = id_idx < id_end() ? topk_ids[id_idx] : -1;
    }
    return ranked;
  }

  // Numbers this block's rows of each expert in the order of (token, k), from where the blocks before it end.
  // One warp does it. Only next_row depends on the previous warpful of ids: everything else is done ahead.
  SWITCHYARD_DEVICE void number_rows() const {
    if (!is_ranker()) return;
    RankedIds ranked = load_ranked(first_id());
    SWITCHYARD_ROLLED
    for (int expert_idx = target::lane_idx(); expert_idx < shape.n_experts(); expert_idx += kWarpSize)
      shared.next_row[expert_idx] = shared.num_before[expert_idx];
    target::sync_warp();
    for (int first = first_id(); first < id_end();) {
      int(&experts)[RankedIds::kPerLane] = ranked.ids;
      shape.find_experts(experts);
      uint32_t same[RankedIds::kPerLane];
      for (int i = 0; i < RankedIds::kPerLane; ++i)
        same[i] = target::match_any(static_cast<uint32_t>(experts[i]));
      const int next = first + RankedIds::kPerLane * kWarpSize;
      const RankedIds next_ranked = load_ranked(next);
      for (int i = 0; i < RankedIds::kPerLane && first + i * kWarpSize < id_end(); ++i)
        rank_warpful(first + i * kWarpSize + target::lane_idx(), experts[i], same[i]);
      first = next;
      ranked = next_ranked;
    }
  }

  // `same` has the lanes with this expert.
  SWITCHYARD_DEVICE void rank_warpful(int id_idx, int expert_idx, uint32_t same) const {
    const uint32_t same_below = same & ((1u << target::lane_idx()) - 1);
    const uint32_t next_row = expert_idx >= 0 ? shared.next_row[expert_idx] : 0;
    target::sync_warp();
    if (expert_idx >= 0) {
      if (same_below == 0)
        shared.next_row[expert_idx] = next_row + static_cast<uint32_t>(target::popcount(same));
      target::st(number_of(id_idx), next_row + static_cast<uint32_t>(target::popcount(same_below)));
    }
    target::sync_warp();
  }

  SWITCHYARD_DEVICE int expert_of(int id_idx) const { return shape.expert_of_id(topk_ids[id_idx]); }

  // A row's number is kept in shared memory if all of the block's fit, else in row_of.
  SWITCHYARD_DEVICE bool has_numbers_here() const {
    return id_end() - first_id() <= DirectDispatchShared::kMaxNumbers;
  }
  SWITCHYARD_DEVICE uint32_t* number_of(int id_idx) const {
    return has_numbers_here() ? &shared.numbers[id_idx - first_id()] : &row_of[id_idx];
  }

  // Returns the row of the id; all counts must be known.
  SWITCHYARD_DEVICE uint32_t row_of_id(int id_idx, int expert_idx) const {
    return shared.my_first_row[expert_idx] + target::ld(number_of(id_idx));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
