// Carrying tokens of a format that encodes: a carrier turns a token into its codes where it lies in shared
// memory (or, for one expert after the other, beside it), and bulk copies take the codes to the token's rows.
// Scales go beside them where their tensor has them by row. Where it interleaves rows they stay with their
// sender, once for all rows of the token, and the owners' dispatch_wait fetches them.
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/format/token_format.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Dispatch: a DirectDispatchAsync whose format is an InPlaceTokenFormat or a BesideTokenFormat.
template <typename Dispatch>
struct CarryEncoded {
  using Format = typename Dispatch::Format;

  Dispatch& dispatch;
  const uint32_t scales_stride = scale_row_bytes(dispatch.params.format);

  SWITCHYARD_DEVICE explicit CarryEncoded(Dispatch& dispatch_in) : dispatch(dispatch_in) {}

  SWITCHYARD_DEVICE void run(int first_expert) {
    const TraceSlice slice(dispatch.params.fault.trace, Phase::kDispatchAsync, TraceName::kCarryRows);
    if (!dispatch.is_carrier()) return;
    int expert_idx = first_expert;
    for (int turn = 0; dispatch.token_of_turn(turn) < dispatch.token_end; ++turn) {
      if constexpr (BesideTokenFormat<Format>)
        carry_by_expert(turn, expert_idx);
      else
        carry(turn, expert_idx);
      expert_idx = dispatch.expert_of_turn(turn + 1);
    }
    target::bulk_wait<0>();
  }

  // Lane k carries to the row of the token's choice k.
  SWITCHYARD_DEVICE void carry(int turn, int expert_idx) {
    std::byte* stage = dispatch.stages.stage(dispatch.room(), dispatch.stage_of_turn(turn));
    std::byte* scales = dispatch.stages.scales(dispatch.room(), dispatch.stage_of_turn(turn));
    const int owner = expert_idx >= 0 ? dispatch.shape.owner_rank(expert_idx) : -1;
    const uint32_t row = expert_idx >= 0 ? dispatch.row_idx_of_turn(turn, expert_idx) : 0;
    dispatch.await_load(turn);
    dispatch.params.format.encode_in_place(stage, scales);
    // The copies read what ordinary stores wrote, and write rows that ordinary loads have read.
    target::fence_proxy_async();
    target::sync_warp();
    dispatch.carry(turn, owner < 0 ? nullptr : dispatch.row_at(owner, row));
    if constexpr (Format::kInterleavesRows)
      keep_scales(dispatch.token_of_turn(turn), /*k=*/0, scales);
    else
      carry_scales(dispatch.token_of_turn(turn), scales, owner, row);
    target::bulk_commit();
    target::bulk_wait_read<0>();
    target::sync_warp();
    dispatch.start_load(turn + dispatch.carriers.stages_each);
  }

  // Every expert has codes of its own: they are made one after the other, and lane k carries those of the
  // token's choice k.
  SWITCHYARD_DEVICE void carry_by_expert(int turn, int expert_idx) {
    static_assert(Format::kInterleavesRows);
    const int token_idx = dispatch.token_of_turn(turn);
    const int shared_row = dispatch.params.shared_expert.row_of(token_idx);
    const int owner = expert_idx >= 0 ? dispatch.shape.owner_rank(expert_idx) : -1;
    const uint32_t row = expert_idx >= 0 ? dispatch.row_idx_of_turn(turn, expert_idx) : 0;
    dispatch.await_load(turn);
    for (int k = 0; k < dispatch.shape.top_k(); ++k) {
      const int expert_of_k = target::shuffle(expert_idx, k);
      if (expert_of_k < 0) continue;
      carry_encoded_for(dispatch.shape.id_of_expert(expert_of_k), turn, k,
                        target::lane_idx() == k ? dispatch.row_at(owner, row) : nullptr);
    }
    if (shared_row >= 0) {
      const bool is_first_lane = target::lane_idx() == 0;
      carry_encoded_for(kSharedExpert, turn, dispatch.shape.top_k(),
                        is_first_lane
                            ? dispatch.row_at(dispatch.params.my_rank, static_cast<uint32_t>(shared_row))
                            : nullptr);
      if (is_first_lane) dispatch.tell_shared_row(token_idx, shared_row);
    }
    dispatch.start_load(turn + dispatch.carriers.stages_each);
  }
  // By a whole warp; the lane that has a row starts the copy there.
  SWITCHYARD_DEVICE void carry_encoded_for(int expert, int turn, int k, std::byte* row) {
    const int stage_idx = dispatch.stage_of_turn(turn);
    std::byte* codes = dispatch.stages.codes(dispatch.room(), stage_idx);
    std::byte* scales = dispatch.stages.scales(dispatch.room(), stage_idx);
    dispatch.params.format.encode_beside(dispatch.stages.stage(dispatch.room(), stage_idx), codes, scales,
                                         expert);
    target::fence_proxy_async();  // as in carry()
    target::sync_warp();
    if (row != nullptr) target::bulk_store(row, codes, dispatch.row_bytes);
    keep_scales(dispatch.token_of_turn(turn), k, scales);
    target::bulk_commit();
    target::bulk_wait_read<0>();
    target::sync_warp();
  }

  SWITCHYARD_DEVICE void keep_scales(int token_idx, int k, const std::byte* scales) const {
    if (target::lane_idx() != 0) return;
    target::bulk_store(dispatch.params.recv_bufs.of_rank[dispatch.params.my_rank] +
                           dispatch.params.token_scales_offset +
                           uint64_t{dispatch.token_scales().entry(token_idx, k)} * scales_stride,
                       scales, scales_stride);
  }

  SWITCHYARD_DEVICE std::byte* scales_at(int owner, uint32_t row) const {
    return dispatch.params.recv_bufs.of_rank[owner] + dispatch.params.scales_offset +
           uint64_t{row} * scales_stride;
  }

  SWITCHYARD_DEVICE void carry_scales(int token_idx, const std::byte* scales, int owner, uint32_t row) const {
    const int shared_row = dispatch.params.shared_expert.row_of(token_idx);
    if (scales_stride % 16 == 0) {
      if (owner >= 0) target::bulk_store(scales_at(owner, row), scales, scales_stride);
      if (shared_row >= 0 && target::lane_idx() == 0)
        target::bulk_store(scales_at(dispatch.params.my_rank, static_cast<uint32_t>(shared_row)), scales,
                           scales_stride);
      return;
    }
    for (int k = 0; k < dispatch.shape.top_k(); ++k) {
      const int owner_of_k = target::shuffle(owner, k);
      const uint32_t row_of_k = target::shuffle(row, k);
      if (owner_of_k >= 0) copy_scales(scales_at(owner_of_k, row_of_k), scales);
    }
    if (shared_row >= 0)
      copy_scales(scales_at(dispatch.params.my_rank, static_cast<uint32_t>(shared_row)), scales);
  }
  SWITCHYARD_DEVICE void copy_scales(std::byte* dst, const std::byte* scales) const {
    copy_bytes(dst, scales, scales_stride, target::lane_idx(), kWarpSize);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
