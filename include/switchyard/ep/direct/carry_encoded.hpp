// Carrying tokens of a format that encodes: a carrier turns a token into its codes where it lies in shared
// memory, and bulk copies take those to the token's rows. Scales wait in shared memory; all warps write them
// to their places, batch by batch.
#pragma once

#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Dispatch: a DirectDispatchAsync whose format is an InPlaceTokenFormat.
template <typename Dispatch>
struct CarryEncoded {
  Dispatch& dispatch;
  const int num_tokens = dispatch.token_end - dispatch.token_begin;  // of this block
  const int num_batches = (num_tokens + dispatch.stages.batch_tokens - 1) / dispatch.stages.batch_tokens;

  SWITCHYARD_DEVICE explicit CarryEncoded(Dispatch& dispatch_in) : dispatch(dispatch_in) {}

  SWITCHYARD_DEVICE void run(int first_expert) {
    // Who read the rows of the step before did so by ordinary loads.
    if (dispatch.is_carrier()) target::fence_proxy_async();
    std::byte* row = dispatch.place_row(0, first_expert);
    int turn = 0;
    for (int batch_idx = 0; batch_idx < num_batches; ++batch_idx) {
      const int begin = begin_of(batch_idx), end = begin_of(batch_idx + 1);
      for (; dispatch.is_carrier() && dispatch.token_of_turn(turn) < end; ++turn) {
        carry(turn, begin, row);
        row = dispatch.place_row(turn + 1, dispatch.expert_of_turn(turn + 1));
      }
      target::sync_block();  // the batch's scales are there
      write_scales(begin, end);
      if (batch_idx + 1 < num_batches) target::sync_block();  // and may be written over
    }
    if (dispatch.is_carrier()) {
      target::bulk_wait<0>();
      target::fence_proxy_async();
    }
  }

  // Batches of nearly the same size.
  SWITCHYARD_DEVICE int begin_of(int batch_idx) const {
    return dispatch.token_begin +
           static_cast<int>(static_cast<int64_t>(num_tokens) * batch_idx / num_batches);
  }
  SWITCHYARD_DEVICE std::byte* scales_of(int idx_in_batch) const {
    return dispatch.stages.scales(dispatch.room(), idx_in_batch);
  }

  SWITCHYARD_DEVICE void carry(int turn, int batch_begin, std::byte* row) {
    std::byte* stage = dispatch.stages.stage(dispatch.room(), dispatch.stage_of_turn(turn));
    dispatch.await_load(turn);
    dispatch.params.format.encode_in_place(stage, scales_of(dispatch.token_of_turn(turn) - batch_begin));
    target::fence_proxy_async();  // the copies read what ordinary stores wrote
    target::sync_warp();
    dispatch.carry(turn, row);
    target::bulk_commit();
    target::bulk_wait_read<0>();
    target::sync_warp();
    dispatch.start_load(turn + dispatch.carriers.stages_each);
  }

  // A warp per token: lane k knows where its choice k goes, all lanes write each row's scales.
  SWITCHYARD_DEVICE void write_scales(int begin, int end) const {
    for (int token_idx = begin + target::warp_idx(); token_idx < end; token_idx += target::num_warps()) {
      int owner = -1;
      uint32_t row = 0;
      if (target::lane_idx() < dispatch.shape.top_k()) {
        const int64_t id_idx = static_cast<int64_t>(token_idx) * dispatch.shape.top_k() + target::lane_idx();
        const int expert_idx = dispatch.expert_of(id_idx);
        if (expert_idx >= 0) {
          owner = dispatch.shape.owner_rank(expert_idx);
          row = target::ld(&dispatch.params.row_of[id_idx]);
        }
      }
      for (int k = 0; k < dispatch.shape.top_k(); ++k) {
        const int rank = target::shuffle(owner, k);
        const uint32_t row_of_k = target::shuffle(row, k);
        if (rank >= 0) write_scales_of_row(rank, row_of_k, scales_of(token_idx - begin));
      }
      const int shared_row = dispatch.params.shared_expert.row_of(token_idx);
      if (shared_row >= 0)
        write_scales_of_row(dispatch.params.my_rank, static_cast<uint32_t>(shared_row),
                            scales_of(token_idx - begin));
    }
  }
  SWITCHYARD_DEVICE void write_scales_of_row(int rank, uint32_t row, const std::byte* scales) const {
    dispatch.params.format
        .with_output(nullptr, dispatch.params.recv_bufs.of_rank[rank] + dispatch.params.scales_offset)
        .write_scales(scales, row, target::lane_idx(), kWarpSize);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
