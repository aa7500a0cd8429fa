// Every (token, k) of a block and its row on the expert's owner, for the carriers and for whoever reads rows.
#pragma once

#include "switchyard/detail/ep/direct/destination_rows.hpp"
#include "switchyard/detail/ep/direct/row_numbers.hpp"
#include "switchyard/detail/ep/direct/staged_tokens.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct AssignedRows {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const ShapeOf<Fixed> shape;
  const StagedTokens<Fixed> staged;
  const RowNumbers<Fixed> numbers;
  const DestinationRows<Fixed, Format> rows;

  // Gives every (token, k) of this block its row on the expert's owner. All threads write src_info together:
  // its 8-byte stores coalesce only then. Carriers that can find their rows themselves need not wait for it.
  SWITCHYARD_DEVICE void assign() const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kAssignRows);
    const bool leaves_out_carriers = carriers_find_rows();
    if (leaves_out_carriers && staged.is_carrier()) return;
    const int num_left_out = leaves_out_carriers ? staged.carriers.num_carriers * kWarpSize : 0;
    SWITCHYARD_ROLLED
    for (int id_idx = numbers.first_id() + target::thread_idx() - num_left_out; id_idx < numbers.id_end();
         id_idx += target::num_threads() - num_left_out) {
      const int expert_idx = numbers.expert_of(id_idx);
      if (expert_idx < 0) continue;
      const uint32_t row_idx = numbers.row_of_id(id_idx, expert_idx);
      target::st(&params.row_of[id_idx], row_idx);
      const int token_idx = id_idx / shape.top_k(), k = id_idx - token_idx * shape.top_k();
      rows.store_source(expert_idx, row_idx, token_idx, k);
    }
    if (!leaves_out_carriers) target::sync_block();
  }

  // For lane k of a carrier: choice k of the turn's token; -1 if there is none.
  SWITCHYARD_DEVICE int choice_of_turn(int turn) const {
    if (!staged.is_carrier() || target::lane_idx() >= shape.top_k() || !staged.has_turn(turn)) return -1;
    return numbers.topk_ids[id_of_turn(turn)];
  }
  // The expert that it names.
  SWITCHYARD_DEVICE int expert_of_turn(int turn) const { return shape.expert_of_id(choice_of_turn(turn)); }
  // For lane k of a carrier: the row of choice k on the expert's owner.
  SWITCHYARD_DEVICE uint32_t row_of_turn(int turn, int expert_idx) const {
    const int id_idx = id_of_turn(turn);
    return carriers_find_rows() ? numbers.row_of_id(id_idx, expert_idx) : target::ld(&params.row_of[id_idx]);
  }

 private:
  // Returns whether carriers find their rows without assign(), which the other warps run meanwhile.
  SWITCHYARD_DEVICE bool carriers_find_rows() const {
    return numbers.has_numbers_here() && staged.carriers.num_carriers < target::num_warps();
  }
  SWITCHYARD_DEVICE int id_of_turn(int turn) const {
    return staged.token_of_turn(turn) * shape.top_k() + target::lane_idx();
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
