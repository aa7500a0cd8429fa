// combine_async: sends every expert row back to the token it came from; the last block signals all source
// ranks.
#pragma once

#include "switchyard/detail/ep/combine_rows.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/sync/signal.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct SlottedCombineAsyncShared {
  PairTable rows;
  uint32_t first_row[kMaxExperts];  // [pair], where its rows lie in expert_rows
  bool is_last_block;
};

template <FixedShape Fixed, typename Epilogue, typename Rows>
struct SlottedCombineAsync {
  using Params = CombineParams<SlottedCombinePart, Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  EPLocalSyncCounters<Fixed::kShape.n_experts> counters{params.ep_counters};
  CombineRecvLayout recv_layout{shape.max_tokens_per_rank(), shape.top_k(), Rows::row_bytes(shape.hidden())};
  SlottedCombineAsyncShared& shared = target::shared_storage<SlottedCombineAsyncShared>();

  SWITCHYARD_DEVICE explicit SlottedCombineAsync(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (!read_ranges()) return;  // the step is broken: nothing can be sent
    send_rows();
    target::sync_block();
    if constexpr (kHasWire<Fixed>) settle_block(params.peers.wire);
    if (target::thread_idx() == 0)
      // acq_rel MM-04: collects the copies of all blocks before the last one signals; pairs with itself in
      // the other blocks
      shared.is_last_block = target::atomic_add_acq_rel_device(blocks_left(), 1) ==
                             mutate<Fixed, LogicMutant::kFirstBlockSignals>(target::num_blocks() - 1, 0);
    target::sync_block();
    if (shared.is_last_block) signal();
  }

  SWITCHYARD_DEVICE int32_t* blocks_left() const {
    return mutate<Fixed, LogicMutant::kCounterOverlaps>(counters.blocks_left(),
                                                        counters.first_in_expert(shape.n_ranks() - 1));
  }

  // Reads from region A, as dispatch_wait left it, which rows came from which rank; false if it left none.
  SWITCHYARD_DEVICE bool read_ranges() {
    const TraceSlice slice(params.wait_context.trace, Phase::kCombineAsync, TraceName::kReadRanges);
    const bool is_healthy = is_unpoisoned<Fixed, LogicMutant::kCombineIgnoresPoison>(params.wait_context);
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts();
         pair_idx += target::num_threads()) {
      const uint32_t row_count = static_cast<uint32_t>(target::ld(counters.row_count(pair_idx)));
      shared.rows.first[pair_idx] = row_count;
      shared.first_row[pair_idx] = static_cast<uint32_t>(target::ld(counters.row_end(pair_idx))) - row_count;
    }
    if (!sync_block_all(is_healthy)) return false;
    if (target::warp_idx() == 0) shared.rows.scan(shape.n_experts());
    target::sync_block();
    return has_expert_rows();
  }

  // Only a rank that received nothing may have null expert_rows.
  SWITCHYARD_DEVICE bool has_expert_rows() const {
    const uint32_t num_rows = shared.rows.total(shape.n_experts());
    if (!kChecked || num_rows == 0 || params.expert_rows != nullptr) return true;
    if (target::block_idx() == 0 && target::thread_idx() == 0)
      raise_fault(params.wait_context, FaultKind::kNoExpertRows, {Phase::kCombineAsync, -1, -1, 0}, num_rows,
                  0);
    return false;
  }

  SWITCHYARD_DEVICE void send_rows() {
    const TraceSlice slice(params.wait_context.trace, Phase::kCombineAsync, TraceName::kSendRows);
    const int num_pairs = shape.n_experts();
    for_each_row(shared.rows.total(num_pairs), [&](uint32_t item_idx, int worker_idx, int num_workers) {
      const int pair_idx = shared.rows.find(item_idx, num_pairs);
      const int64_t row = int64_t{shared.first_row[pair_idx]} + item_idx - shared.rows.first[pair_idx];
      const int src_rank = pair_idx % shape.n_ranks();
      const int token_idx = target::ld(&params.src_info[2 * row]);
      const int k = target::ld(&params.src_info[2 * row + 1]);
      if (kChecked && !recv_layout.holds(token_idx, k)) {
        if (worker_idx == 0) report_bad_source(pair_idx, token_idx, k);
        return;
      }
      const bf16* expert_row = static_cast<const bf16*>(params.expert_rows) + row * shape.hidden();
      std::byte* recv_buf = peer_pointer<Fixed>(params, params.recv_bufs, src_rank);
      if constexpr (kHasWire<Fixed>)
        if (recv_buf == nullptr) return put_row(src_rank, token_idx, k, item_idx, expert_row, worker_idx);
      Rows::encode(expert_row, recv_layout.row(recv_buf, token_idx, k), shape.hidden(), worker_idx,
                   num_workers);
    });
  }

  // One warp alone encodes the row and puts it.
  SWITCHYARD_DEVICE void put_row(int src_rank, int token_idx, int k, uint32_t item_idx,
                                 const bf16* expert_row, int worker_idx) const {
    if (worker_idx >= kWarpSize) return;
    std::byte* encoded = params.send_buf + uint64_t{item_idx} * recv_layout.msg_bytes;
    Rows::encode(expert_row, encoded, shape.hidden(), worker_idx, kWarpSize);
    target::sync_warp();
    target::wire_put_warp(params.peers.wire, src_rank, recv_layout.row(params.recv_bufs.mine, token_idx, k),
                          encoded, recv_layout.msg_bytes);
  }

  SWITCHYARD_DEVICE int expert_of(int pair_idx) const {
    return params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
  }

  // The caller could have changed src_info: an entry becomes an address only if that row exists.
  SWITCHYARD_DEVICE void report_bad_source(int pair_idx, int token_idx, int k) const {
    const auto pack = [](int token, int choice) {
      return static_cast<uint64_t>(static_cast<uint32_t>(choice)) << 32 | static_cast<uint32_t>(token);
    };
    raise_fault(params.wait_context, FaultKind::kBadSourceInfo,
                {Phase::kCombineAsync, pair_idx % shape.n_ranks(), expert_of(pair_idx),
                 pack(recv_layout.max_tokens_per_rank, recv_layout.top_k)},
                pack(token_idx, k), 0);
  }

  SWITCHYARD_DEVICE void signal() {
    const TraceSlice slice(params.wait_context.trace, Phase::kCombineAsync, TraceName::kSignal);
    const CombineCountLayout counts{shape.n_experts()};
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts();
         pair_idx += target::num_threads()) {
      const int src_rank = pair_idx % shape.n_ranks();
      // release MM-05: hands the source rank its rows of this expert; pairs with the acquire in its
      // combine_wait
      publish<Fixed>(
          params, params.recv_counts, src_rank,
          [&](uint64_t* cells) { return counts.cell(cells, expert_of(pair_idx)); },
          shared.rows.count(pair_idx));
    }
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts(); pair_idx += target::num_threads())
      target::st_relaxed_device(counters.extra_rows(pair_idx),
                                mutate<Fixed, LogicMutant::kExtraRowsNotPutBack>(0, [&] {
                                  return target::ld_relaxed_device(counters.extra_rows(pair_idx));
                                }));
    if (target::thread_idx() == 0) target::st_relaxed_device(blocks_left(), 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
