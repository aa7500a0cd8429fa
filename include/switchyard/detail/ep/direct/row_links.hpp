// Links between siblings, the rows that a token has on one rank, as the sender makes them: a carrier has all
// rows of its token, each in a lane.
#pragma once

#include "switchyard/detail/ep/direct/destination_rows.hpp"
#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Both functions are called by a whole warp: lane k has the owner of a token's choice k, and lanes without a
// choice have -1.
template <FixedShape Fixed, typename Format>
struct RowLinks {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const DestinationRows<Fixed, Format>& rows;

  // Stores each row's link beside it, and its weight if owners ask for weights. expert_idx and row_idx are
  // those of the lane's choice.
  SWITCHYARD_DEVICE void store(int token_idx, int expert_idx, int owner, uint32_t row_idx) const {
    const uint32_t siblings = siblings_of(owner);
    const uint32_t behind = siblings & ~lanes_below() & ~(1u << target::lane_idx());
    const int next_lane = mutate<Fixed, LogicMutant::kLinkedToItself>(
        behind != 0 ? target::lowest_set_bit(behind) : target::lane_idx(), target::lane_idx());
    const uint32_t next_row = target::shuffle(row_idx, next_lane);
    const int first_lane =
        mutate<Fixed, LogicMutant::kScalesOfOwnRow>(target::lowest_set_bit(siblings), target::lane_idx());
    const SiblingScales scales{true, target::shuffle(row_idx, first_lane)};
    if (owner < 0 || is_mutant<Fixed>(LogicMutant::kLinksNotStored)) return;
    const uint32_t none = RowLink::kNone;
    const RowLink link{
        .is_first = (siblings & lanes_below()) == 0,
        .next_row = mutate<Fixed, LogicMutant::kSiblingNotLinked>(behind != 0 ? next_row : none, none)};
    const bool has_weight =
        mutate<Fixed, LogicMutant::kRowWeightsNotStored>(params.topk_weights != nullptr, false);
    const float weight =
        has_weight
            ? params.topk_weights[static_cast<int64_t>(token_idx) * rows.shape.top_k() + target::lane_idx()]
            : 0.0f;
    if constexpr (kHasWire<Fixed>)
      if (rows.far().is_far(owner))
        return rows.far().collect_link(target::shared_storage<DirectDispatchShared>(), expert_idx, row_idx,
                                       link, weight, scales);
    if constexpr (InterleavedTokenFormat<Format>)
      if (params.carries_once && owner != params.my_rank)
        rows.store_scale_note(owner, row_idx, scales.pack());
    std::byte* memory = peer_pointer<Fixed>(params, params.recv_bufs, owner);
    target::st(reinterpret_cast<uint32_t*>(memory + params.row_links_offset) +
                   mutate<Fixed, LogicMutant::kLinkOfNextRow>(row_idx, row_idx + 1),
               link.pack());
    if (has_weight)
      target::st(reinterpret_cast<float*>(memory + params.row_weights_offset) + row_idx, weight);
  }

  // Returns whether the lane's copy of the token is carried to its row. A row of another rank that has a
  // sibling before it is filled there.
  SWITCHYARD_DEVICE bool carries(int owner) const {
    const bool is_first = (siblings_of(owner) & lanes_below()) == 0;
    const bool is_own = mutate<Fixed, LogicMutant::kOwnRowsNotCarried>(owner == params.my_rank, false);
    return owner >= 0 && (is_first || is_own || !params.carries_once);
  }

 private:
  SWITCHYARD_DEVICE static uint32_t siblings_of(int owner) {
    return target::match_any(static_cast<uint32_t>(owner));
  }
  SWITCHYARD_DEVICE static uint32_t lanes_below() { return (1u << target::lane_idx()) - 1; }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
