// combine_async, direct protocol, to far ranks: they cannot read this rank's expert output, so this rank puts
// each of their rows to the (token, k) that it belongs to.
#pragma once

#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct PushedRowsShared {
  PairTable rows;                   // of far ranks; none of near ones
  uint32_t first_row[kMaxExperts];  // [pair]
  bool is_last_block;
};

template <FixedShape Fixed, typename Params>
struct PushedRows {
  const Params& params;
  const ShapeOf<Fixed>& shape;
  const CombineRecvLayout recv_layout;
  PushedRowsShared& shared = target::shared_storage<PushedRowsShared>();

  // Called by all threads of all blocks. Returns whether this block is the last to end: it may signal then.
  SWITCHYARD_DEVICE bool put() {
    const TraceSlice slice(params.wait_context.trace, Phase::kCombineAsync, TraceName::kSendRows);
    const DirectCounters counters{params.ep_counters};
    find_rows(counters);
    put_rows();
    target::sync_block();
    settle_block(params.peers.wire);
    if (target::thread_idx() == 0) {
      // acq_rel MM-29: collects what all blocks have settled before the last one signals; pairs with itself
      // in the other blocks
      shared.is_last_block =
          target::atomic_add_acq_rel_device(counters.blocks_done(), 1) == target::num_blocks() - 1;
      if (shared.is_last_block) target::st_relaxed_device(counters.blocks_done(), 0);
    }
    target::sync_block();
    return shared.is_last_block;
  }

 private:
  SWITCHYARD_DEVICE uint32_t count_of(int src_rank, int expert_idx) const {
    const CountTableLayout table{shape.n_ranks(), shape.n_experts() + params.shared_expert.num_groups};
    const uint64_t cell =
        target::ld(table.cell(params.wire.count_table, src_rank, expert_idx / CountCell::kExperts));
    return CountCell::unpack(cell).counts[expert_idx % CountCell::kExperts];
  }

  // An expert's rows lie in the order of their source ranks.
  SWITCHYARD_DEVICE void find_rows(const DirectCounters& counters) {
    const int first_group = params.shared_expert.num_groups;
    for (int local = target::thread_idx(); local < shape.n_local_experts(); local += target::num_threads()) {
      uint32_t row = static_cast<uint32_t>(target::ld(counters.row_offset(first_group + local)));
      for (int rank = 0; rank < shape.n_ranks(); ++rank) {
        const int pair_idx = local * shape.n_ranks() + rank;
        const uint32_t count = count_of(rank, params.my_rank * shape.n_local_experts() + local);
        const bool is_far = peer_pointer<Fixed>(params, params.recv_bufs, rank) == nullptr;
        shared.rows.first[pair_idx] = is_far ? count : 0;
        shared.first_row[pair_idx] = row;
        row += count;
      }
    }
    target::sync_block();
    if (target::warp_idx() == 0) shared.rows.scan(shape.n_experts());
    target::sync_block();
  }

  SWITCHYARD_DEVICE void put_rows() const {
    const int num_pairs = shape.n_experts();
    const uint32_t num_rows = shared.rows.total(num_pairs);
    const uint32_t num_warps = static_cast<uint32_t>(target::num_warps() * target::num_blocks());
    for (uint32_t item_idx =
             static_cast<uint32_t>(target::warp_idx() * target::num_blocks() + target::block_idx());
         item_idx < num_rows; item_idx += num_warps) {
      const int pair_idx = shared.rows.find(item_idx, num_pairs);
      put_row(pair_idx, shared.first_row[pair_idx] + (item_idx - shared.rows.first[pair_idx]));
    }
  }
  SWITCHYARD_DEVICE void put_row(int pair_idx, uint32_t row) const {
    const int src_rank = pair_idx % shape.n_ranks();
    const int token_idx = target::ld(&params.wire.src_info[2 * uint64_t{row}]);
    const int k = target::ld(&params.wire.src_info[2 * uint64_t{row} + 1]);
    if (kChecked && !recv_layout.holds(token_idx, k)) {
      if (target::lane_idx() == 0)
        raise_fault(
            params.wait_context, FaultKind::kBadSourceInfo,
            {Phase::kCombineAsync, src_rank, -1, static_cast<uint64_t>(recv_layout.max_tokens_per_rank)},
            static_cast<uint64_t>(static_cast<uint32_t>(token_idx)), 0);
      return;
    }
    target::wire_put_warp(
        params.peers.wire, src_rank, recv_layout.row(params.wire.recv_buf, token_idx, k),
        static_cast<const std::byte*>(params.expert_rows) + uint64_t{row} * recv_layout.msg_bytes,
        recv_layout.msg_bytes);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
