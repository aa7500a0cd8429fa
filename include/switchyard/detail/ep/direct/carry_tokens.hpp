// Carrying tokens as they are: bulk copies take a token from its stage to its rows while the next one is
// loaded into the carrier's other stage.
#pragma once

#include "switchyard/detail/ep/direct/assigned_rows.hpp"
#include "switchyard/detail/ep/direct/destination_rows.hpp"
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
  // For lane k: the row of the token's choice k; null if there is none.
  SWITCHYARD_DEVICE std::byte* row_of_turn(int turn, int expert_idx) const {
    if (expert_idx < 0) return nullptr;
    return rows.row(shape.owner_rank(expert_idx), assigned.row_of_turn(turn, expert_idx));
  }
  SWITCHYARD_DEVICE void put_far(int turn) const {
    const int expert_idx = assigned.expert_of_turn(turn);
    const bool has_row = expert_idx >= 0;
    rows.far().put(staged.token_of_turn(turn), /*k=*/0, staged.token(turn), nullptr,
                   has_row ? shape.owner_rank(expert_idx) : -1,
                   has_row ? assigned.row_of_turn(turn, expert_idx) : 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
