// Carrying tokens of a format that encodes: a carrier turns a token into its codes where it lies in shared
// memory, and bulk copies take those to the token's rows. Scales wait in shared memory; all warps write them
// to their places, batch by batch, and in order where scales of neighbouring rows lie side by side.
#pragma once

#include "switchyard/ep/pair_table.hpp"

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
    std::byte* row = dispatch.row_of_turn(0, first_expert);
    int turn = 0;
    for (int batch_idx = 0; batch_idx < num_batches; ++batch_idx) {
      const int begin = begin_of(batch_idx), end = begin_of(batch_idx + 1);
      for (; dispatch.is_carrier() && dispatch.token_of_turn(turn) < end; ++turn) {
        carry(turn, begin, row);
        row = dispatch.row_of_turn(turn + 1, dispatch.expert_of_turn(turn + 1));
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

  SWITCHYARD_DEVICE void write_scales(int begin, int end) {
    if constexpr (Dispatch::Format::kInterleavesRows) {
      order_rows(begin, end);
      write_in_order(begin);
    } else {
      write_by_token(begin, end);
    }
    write_shared_expert(begin, end);
  }

  SWITCHYARD_DEVICE int64_t id_of(int begin, int item_idx) const {
    return static_cast<int64_t>(begin) * dispatch.shape.top_k() + item_idx;
  }

  // Sorts the batch's rows by expert. What has counted experts before is free to do it again.
  SWITCHYARD_DEVICE void order_rows(int begin, int end) {
    const int num_items = (end - begin) * dispatch.shape.top_k();
    uint32_t* next = dispatch.shared.first_row;
    for (int expert_idx = target::thread_idx(); expert_idx < dispatch.shape.n_experts();
         expert_idx += target::num_threads())
      next[expert_idx] = 0;
    target::sync_block();
    for (int item_idx = target::thread_idx(); item_idx < num_items; item_idx += target::num_threads()) {
      const int expert_idx = dispatch.expert_of(id_of(begin, item_idx));
      if (expert_idx >= 0) target::atomic_add_relaxed_block(&next[expert_idx], 1u);
    }
    target::sync_block();
    block_exclusive_scan(next, dispatch.shape.n_experts(), /*alignment=*/1, dispatch.shared.warp_sums);
    for (int item_idx = target::thread_idx(); item_idx < num_items; item_idx += target::num_threads()) {
      const int expert_idx = dispatch.expert_of(id_of(begin, item_idx));
      if (expert_idx >= 0)
        dispatch.stages.order(dispatch.room())[target::atomic_add_relaxed_block(&next[expert_idx], 1u)] =
            static_cast<uint16_t>(item_idx);
    }
    target::sync_block();
  }

  // A thread per row: lanes write the scales of neighbouring rows at the same time, and all blocks go from
  // expert to expert together, so that lines of memory are whole before they leave the cache.
  SWITCHYARD_DEVICE void write_in_order(int begin) const {
    const int num_rows = static_cast<int>(dispatch.shared.first_row[dispatch.shape.n_experts()]);
    for (int i = target::thread_idx(); i < num_rows; i += target::num_threads()) {
      const int item_idx = dispatch.stages.order(dispatch.room())[i];
      const int64_t id_idx = id_of(begin, item_idx);
      format_of(dispatch.shape.owner_rank(dispatch.expert_of(id_idx)))
          .write_scales(scales_of(item_idx / dispatch.shape.top_k()),
                        target::ld(&dispatch.params.row_of[id_idx]), 0, 1);
    }
  }

  // A warp per token: all lanes write each row's scales.
  SWITCHYARD_DEVICE void write_by_token(int begin, int end) const {
    for (int token_idx = begin + target::warp_idx(); token_idx < end; token_idx += target::num_warps())
      for (int k = 0; k < dispatch.shape.top_k(); ++k) {
        const int64_t id_idx = static_cast<int64_t>(token_idx) * dispatch.shape.top_k() + k;
        const int expert_idx = dispatch.expert_of(id_idx);
        if (expert_idx >= 0)
          format_of(dispatch.shape.owner_rank(expert_idx))
              .write_scales(scales_of(token_idx - begin), target::ld(&dispatch.params.row_of[id_idx]),
                            target::lane_idx(), kWarpSize);
      }
  }

  // Rows are in the order of tokens here: a thread per token.
  SWITCHYARD_DEVICE void write_shared_expert(int begin, int end) const {
    for (int token_idx = begin + target::thread_idx(); token_idx < end; token_idx += target::num_threads()) {
      const int row = dispatch.params.shared_expert.row_of(token_idx);
      if (row >= 0) format_of(dispatch.params.my_rank).write_scales(scales_of(token_idx - begin), row, 0, 1);
    }
  }

  SWITCHYARD_DEVICE auto format_of(int rank) const {
    return dispatch.params.format.with_output(
        nullptr, dispatch.params.recv_bufs.of_rank[rank] + dispatch.params.scales_offset);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
