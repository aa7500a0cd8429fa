// combine_async, direct protocol, to far ranks: they cannot read this rank's expert output, so this rank puts
// each of their rows to the (token, k) that it belongs to.
#pragma once

#include "switchyard/detail/ep/direct/arrived_rows.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct PushedRowsShared {
  ArrivedRows rows;  // of far ranks
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

  SWITCHYARD_DEVICE void find_rows(const DirectCounters& counters) {
    shared.rows.find(shape, counters.row_offset(params.shared_expert.num_groups), [&](int local, int rank) {
      const bool is_far = peer_pointer<Fixed>(params, params.recv_bufs, rank) == nullptr;
      return ArrivedCount{count_of(rank, params.my_rank * shape.n_local_experts() + local), is_far};
    });
  }

  SWITCHYARD_DEVICE void put_rows() const {
    const uint32_t num_rows = shared.rows.total(shape);
    const uint32_t num_warps = static_cast<uint32_t>(target::num_warps() * target::num_blocks());
    for (uint32_t item_idx =
             static_cast<uint32_t>(target::warp_idx() * target::num_blocks() + target::block_idx());
         item_idx < num_rows; item_idx += num_warps) {
      const ArrivedRow arrived = shared.rows.row(shape, item_idx);
      put_row(arrived.src_rank, arrived.row);
    }
  }
  SWITCHYARD_DEVICE void put_row(int src_rank, uint32_t row) const {
    if constexpr (kLinksRows<Fixed>)  // the sum of siblings lies in the first
      if (!RowLink::unpack(target::ld(params.wire.links + row)).is_first) return;
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
