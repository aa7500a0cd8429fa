// Carrying tokens of a format that encodes: a carrier turns a token into its codes where it lies in shared
// memory (or beside it, for one expert after the other), and bulk copies carry the codes to the token's rows.
// Scales go beside them if their tensor has them by row. If it interleaves rows, the carrier stores them
// there, a few bytes at a time, where tokens are few. Otherwise scales stay with their sender, once for all
// rows of the token, and the owners' dispatch_wait fetches them; a token that is carried once to a rank takes
// them along.
#pragma once

#include "switchyard/detail/ep/direct/assigned_rows.hpp"
#include "switchyard/detail/ep/direct/destination_rows.hpp"
#include "switchyard/detail/ep/direct/row_links.hpp"
#include "switchyard/detail/ep/direct/staged_tokens.hpp"
#include "switchyard/detail/ep/input_scales.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Format: an InPlaceTokenFormat or a BesideTokenFormat.
template <FixedShape Fixed, typename Format>
struct CarryEncoded {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const ShapeOf<Fixed>& shape;
  const StagedTokens<Fixed>& staged;
  const AssignedRows<Fixed, Format>& assigned;
  const DestinationRows<Fixed, Format>& rows;
  const uint32_t scales_stride = scale_row_bytes(params.format);

  // first_choice is choice_of_turn(0).
  SWITCHYARD_DEVICE void run(int first_choice) const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kCarryRows);
    if (!staged.is_carrier()) return;
    int expert_idx = shape.expert_of_id(first_choice);
    for (int turn = 0; staged.has_turn(turn); ++turn) {
      if constexpr (BesideTokenFormat<Format>)
        carry_by_expert(turn, expert_idx);
      else
        carry(turn, expert_idx);
      expert_idx = assigned.expert_of_turn(turn + 1);
    }
    target::bulk_wait<0>();
  }

  // Encodes the carrier's first token, whose rows need not be known yet.
  SWITCHYARD_DEVICE void encode_first() const {
    if constexpr (InPlaceTokenFormat<Format>)
      if (staged.is_carrier() && staged.has_turn(0)) encode(/*turn=*/0);
  }
  SWITCHYARD_DEVICE void encode(int turn) const {
    staged.await_load(turn);
    if (params.input_scales != nullptr)
      take_input_scales<Fixed>(params, staged.token_of_turn(turn), params.format.scales_bytes(),
                               staged.scales(turn), target::lane_idx(), kWarpSize);
    else
      params.format.encode_in_place(staged.token(turn), staged.scales(turn));
  }

  // Lane k starts the copy to the row of the token's choice k.
  SWITCHYARD_DEVICE void carry(int turn, int expert_idx) const {
    std::byte* stage = staged.token(turn);
    std::byte* scales = staged.scales(turn);
    const int owner = expert_idx >= 0 ? shape.owner_rank(expert_idx) : -1;
    const uint32_t row = expert_idx >= 0 ? assigned.row_of_turn(turn, expert_idx) : 0;
    const int carried_to = link(turn, expert_idx, owner, row);
    if (turn > 0) encode(turn);
    // The copies read what ordinary stores wrote, and write rows that ordinary loads have read.
    target::fence_proxy_async();
    target::sync_warp();
    rows.start_copies(stage, staged.token_of_turn(turn),
                      carried_to < 0 ? nullptr : rows.row(carried_to, row));
    if (sends_scales<Fixed>(params)) {
      if (mutate<Fixed, LogicMutant::kScalesBehindSignal>(true, [&] { return staged.has_turn(turn + 1); }))
        store_scales(staged.token_of_turn(turn), scales, owner, row);
    } else if constexpr (Format::kInterleavesRows) {
      keep_scales(staged.token_of_turn(turn), /*k=*/0, scales);
      send_scales(scales, carried_to, row);
    } else {
      carry_scales(staged.token_of_turn(turn), scales, carried_to, row);
    }
    target::bulk_commit();
    if constexpr (kHasWire<Fixed>)
      rows.far().put(staged.token_of_turn(turn), /*k=*/0, stage, scales, owner, row, carried_to >= 0);
    target::bulk_wait_read<0>();
    target::sync_warp();
    staged.start_load(turn + staged.carriers.stages_each);
  }

  // Every expert has codes of its own: they are encoded one after the other, and lane k starts the copy of
  // those of the token's choice k.
  SWITCHYARD_DEVICE void carry_by_expert(int turn, int expert_idx) const {
    static_assert(Format::kInterleavesRows);
    const int token_idx = staged.token_of_turn(turn);
    const int shared_row = params.shared_expert.row_of(token_idx);
    const int owner = expert_idx >= 0 ? shape.owner_rank(expert_idx) : -1;
    const uint32_t row = expert_idx >= 0 ? assigned.row_of_turn(turn, expert_idx) : 0;
    link(turn, expert_idx, owner, row);  // but every row has codes of its own
    staged.await_load(turn);
    for (int k = 0; k < shape.top_k(); ++k) {
      const int expert_of_k = target::shuffle(expert_idx, k);
      if (expert_of_k < 0) continue;
      carry_encoded_for(shape.id_of_expert(expert_of_k), turn, k, target::lane_idx() == k ? owner : -1, row);
    }
    if (shared_row >= 0) {
      const bool is_first_lane = target::lane_idx() == 0;
      carry_encoded_for(kSharedExpert, turn, shape.top_k(), is_first_lane ? params.my_rank : -1,
                        static_cast<uint32_t>(shared_row));
      if (is_first_lane) rows.store_shared_source(token_idx, shared_row);
    }
    staged.start_load(turn + staged.carriers.stages_each);
  }
  // Called by a whole warp; the lane that has an owner (others have -1) starts the copy to its row there.
  SWITCHYARD_DEVICE void carry_encoded_for(int expert, int turn, int k, int owner, uint32_t row_idx) const {
    std::byte* row = owner >= 0 ? rows.row(owner, row_idx) : nullptr;
    std::byte* codes = staged.codes(turn);
    std::byte* scales = staged.scales(turn);
    params.format.encode_beside(staged.token(turn), codes, scales, expert);
    target::fence_proxy_async();  // as in carry()
    target::sync_warp();
    if (row != nullptr) target::bulk_store(row, codes, rows.row_bytes);
    if (sends_scales<Fixed>(params))
      store_row_scales(scales, target::shuffle(owner, k % shape.top_k()),
                       target::shuffle(row_idx, k % shape.top_k()));
    else
      keep_scales(staged.token_of_turn(turn), k, scales);
    target::bulk_commit();
    if constexpr (kHasWire<Fixed>)
      if (k < shape.top_k()) rows.far().put(staged.token_of_turn(turn), k, codes, scales, owner, row_idx);
    target::bulk_wait_read<0>();
    target::sync_warp();
  }

  // Links siblings where kernels do so. Returns the owner, or -1 if the lane's row is not carried.
  SWITCHYARD_DEVICE int link([[maybe_unused]] int turn, [[maybe_unused]] int expert_idx, int owner,
                             [[maybe_unused]] uint32_t row_idx) const {
    if constexpr (kLinksRows<Fixed>) {
      const RowLinks<Fixed, Format> links{params, rows};
      links.store(staged.token_of_turn(turn), expert_idx, owner, row_idx);
      return links.carries(owner) ? owner : -1;
    }
    return owner;
  }

  // Stores a token's scales in the tensors of its rows' owners. Called by a whole warp; lane k has the owner
  // and the row of choice k, or owner -1.
  SWITCHYARD_DEVICE void store_scales([[maybe_unused]] int token_idx,
                                      [[maybe_unused]] const std::byte* scales, [[maybe_unused]] int owner,
                                      [[maybe_unused]] uint32_t row) const {
    const int shared_row = params.shared_expert.row_of(token_idx);
    const int num_rows = shape.top_k() + (shared_row >= 0 ? 1 : 0);
    SWITCHYARD_ROLLED
    for (int k = 0; k < num_rows; ++k) {
      const bool is_shared = k == shape.top_k();
      const int owner_of_k = target::shuffle(owner, k % kWarpSize);
      const uint32_t row_of_k = target::shuffle(row, k % kWarpSize);
      store_row_scales(scales, is_shared ? params.my_rank : owner_of_k,
                       is_shared ? static_cast<uint32_t>(shared_row) : row_of_k);
    }
  }
  // The same for one row; all lanes have its owner, or -1.
  SWITCHYARD_DEVICE void store_row_scales([[maybe_unused]] const std::byte* scales,
                                          [[maybe_unused]] int owner, [[maybe_unused]] uint32_t row) const {
    if constexpr (kCanSendScales<Fixed, Format>) {
      if (owner < 0) return;
      std::byte* memory = peer_pointer<Fixed>(params, params.recv_bufs, owner);
      params.format.with_output(memory, memory + params.scales_offset)
          .write_scales(scales, row, target::lane_idx(), kWarpSize);
    }
  }
  // What a mutant has left out: the scales of the carrier's last token, which are still in its stage.
  SWITCHYARD_DEVICE void store_last_scales() const {
    for (int turn = 0; staged.is_carrier() && staged.has_turn(turn); ++turn) {
      if (staged.has_turn(turn + 1)) continue;
      const int expert_idx = assigned.expert_of_turn(turn);
      store_scales(staged.token_of_turn(turn), staged.scales(turn),
                   expert_idx >= 0 ? shape.owner_rank(expert_idx) : -1,
                   expert_idx >= 0 ? assigned.row_of_turn(turn, expert_idx) : 0);
    }
  }

  SWITCHYARD_DEVICE void keep_scales(int token_idx, int k, const std::byte* scales) const {
    if (target::lane_idx() != 0) return;
    target::bulk_store(params.recv_bufs.mine + params.token_scales_offset +
                           uint64_t{rows.token_scales().entry(token_idx, k)} * scales_stride,
                       scales, scales_stride);
  }

  // Scales that no owner fetches come with the token. Called by a whole warp; lanes that carry nothing have
  // owner -1.
  SWITCHYARD_DEVICE void send_scales([[maybe_unused]] const std::byte* scales, [[maybe_unused]] int owner,
                                     [[maybe_unused]] uint32_t row) const {
    if constexpr (kLinksRows<Fixed>) {
      if (!params.carries_once || owner == params.my_rank || !is_near(owner)) return;
      target::bulk_store(arrived_scales(params, peer_pointer<Fixed>(params, params.recv_bufs, owner), row),
                         scales, scales_stride);
    }
  }

  SWITCHYARD_DEVICE bool is_near(int owner) const {
    return owner >= 0 && (!kHasWire<Fixed> || !rows.far().is_far(owner));
  }
  SWITCHYARD_DEVICE std::byte* scales_at(int owner, uint32_t row) const {
    return peer_pointer<Fixed>(params, params.recv_bufs, owner) + params.scales_offset +
           uint64_t{row} * scales_stride;
  }

  SWITCHYARD_DEVICE void carry_scales(int token_idx, const std::byte* scales, int owner, uint32_t row) const {
    const int shared_row = params.shared_expert.row_of(token_idx);
    if (scales_stride % 16 == 0) {
      if (is_near(owner)) target::bulk_store(scales_at(owner, row), scales, scales_stride);
      if (shared_row >= 0 && target::lane_idx() == 0)
        target::bulk_store(scales_at(params.my_rank, static_cast<uint32_t>(shared_row)), scales,
                           scales_stride);
      return;
    }
    for (int k = 0; k < shape.top_k(); ++k) {
      const int owner_of_k = target::shuffle(owner, k);
      const uint32_t row_of_k = target::shuffle(row, k);
      if (is_near(owner_of_k)) copy_scales(scales_at(owner_of_k, row_of_k), scales);
    }
    if (shared_row >= 0) copy_scales(scales_at(params.my_rank, static_cast<uint32_t>(shared_row)), scales);
  }
  SWITCHYARD_DEVICE void copy_scales(std::byte* dst, const std::byte* scales) const {
    copy_bytes(dst, scales, scales_stride, target::lane_idx(), kWarpSize);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
