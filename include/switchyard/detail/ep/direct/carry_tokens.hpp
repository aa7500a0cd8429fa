// Carrying tokens as they are: bulk copies take a token from its stage to its rows while the next one is
// loaded into the carrier's other stage.
#pragma once

#include "switchyard/detail/ep/direct/assigned_rows.hpp"
#include "switchyard/detail/ep/direct/destination_rows.hpp"
#include "switchyard/detail/ep/direct/row_links.hpp"
#include "switchyard/detail/ep/direct/staged_tokens.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct CarryTokens {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const ShapeOf<Fixed>& shape;
  const StagedTokens<Fixed>& staged;
  const AssignedRows<Fixed, Format>& assigned;
  const DestinationRows<Fixed, Format>& rows;

  // first_choice is choice_of_turn(0).
  SWITCHYARD_DEVICE void run(int first_choice) const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kCarryRows);
    if (!staged.is_carrier()) return;
    target::fence_proxy_async();  // the previous step's rows were read by ordinary loads
    std::byte* row = row_of_turn(0, shape.expert_of_id(first_choice));
    for (int turn = 0; staged.has_turn(turn); ++turn) {
      if (turn > 0) {
        // The next token is loaded into the stage that the last turn's copies have read.
        target::bulk_wait_read<mutate<Fixed, LogicMutant::kDirectStageNotWaitedFor>(0, 1)>();
        target::sync_warp();
        staged.start_load(turn + staged.carriers.stages_each - 1);
      }
      staged.await_load(turn);
      rows.start_copies(staged.token(turn), staged.token_of_turn(turn), row);
      target::bulk_commit();
      if constexpr (kHasWire<Fixed>) put_far(turn);
      row = row_of_turn(turn + 1, assigned.expert_of_turn(turn + 1));  // while the copies are in flight
    }
    target::bulk_wait<0>();
  }

 private:
  // For lane k: the row of the token's choice k; null if there is none, or none to carry the token to.
  SWITCHYARD_DEVICE std::byte* row_of_turn(int turn, int expert_idx) const {
    if constexpr (kLinksRows<Fixed>) {
      const int owner = owner_of(expert_idx);
      const uint32_t row_idx = owner >= 0 ? assigned.row_of_turn(turn, expert_idx) : 0;
      links().store(staged.token_of_turn(turn), expert_idx, owner, row_idx);
      return links().carries(owner) ? rows.row(owner, row_idx) : nullptr;
    }
    if (expert_idx < 0) return nullptr;
    return rows.row(shape.owner_rank(expert_idx), assigned.row_of_turn(turn, expert_idx));
  }
  SWITCHYARD_DEVICE void put_far(int turn) const {
    const int expert_idx = assigned.expert_of_turn(turn), owner = owner_of(expert_idx);
    bool carries = true;
    if constexpr (kLinksRows<Fixed>) carries = links().carries(owner);
    rows.far().put(staged.token_of_turn(turn), /*k=*/0, staged.token(turn), nullptr, carries ? owner : -1,
                   owner >= 0 ? assigned.row_of_turn(turn, expert_idx) : 0);
  }
  SWITCHYARD_DEVICE int owner_of(int expert_idx) const {
    return expert_idx >= 0 ? shape.owner_rank(expert_idx) : -1;
  }
  SWITCHYARD_DEVICE RowLinks<Fixed, Format> links() const { return {params, rows}; }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
