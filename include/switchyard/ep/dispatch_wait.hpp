// dispatch_wait: block 0 waits for the counts of all ranks and turns them into row offsets; then all blocks decode the
// messages that arrived into the ragged output.
#pragma once

#include "switchyard/ep/pair_table.hpp"
#include "switchyard/ep/params.hpp"
#include "switchyard/sync/wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct DispatchWaitShared {
  PairTable messages;
  uint32_t row_begin[kMaxExperts + 1];  // block 0: rows per local expert, then their offsets
  bool is_last_block;
};

template <FixedShape Fixed, typename Format>
struct DispatchWait {
  using Params = DispatchParams<Format>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  SyncCounters counters{params.counters, {shape.n_experts()}};
  MessageLayout message_layout{params.format.encoded_bytes(), shape.top_k()};
  DispatchCountLayout counts{shape.n_experts(), shape.n_ranks()};
  DispatchRecvLayout recv_layout{shape.n_local_experts(), shape.n_ranks(), shape.max_tokens_per_rank(),
                                 message_layout.bytes()};
  DispatchWaitShared& shared = target::shared_storage<DispatchWaitShared>();

  SWITCHYARD_DEVICE explicit DispatchWait(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    const bool ready = target::block_idx() == 0 ? collect_counts() && publish_offsets() : wait_for_offsets();
    if (target::sync_block_any(!ready)) return;  // a fault: the host resets all counters
    decode_arrivals();
    leave();
  }

  SWITCHYARD_DEVICE uint64_t* my_cell(int pair_idx) const {
    return params.recv_counts.of_rank[params.my_rank] + pair_idx;
  }
  // This rank's cells, once collect_counts() or wait_for_offsets() has acquired them.
  SWITCHYARD_DEVICE ArrivalCount arrivals(int pair_idx) const {
    return ArrivalCount::unpack(target::ld_relaxed_device(my_cell(pair_idx)));
  }

  // Block 0: waits until every rank has told how much it sent to every expert here.
  SWITCHYARD_DEVICE bool collect_counts() {
    bool arrived = true;
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts(); pair_idx += target::num_threads()) {
      const int src_rank = pair_idx % shape.n_ranks();
      const int expert_idx = params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
      uint64_t seen = kNothingArrived;
      // acquire: the rank's messages for this expert; pairs with the release in its watch()
      arrived &= wait_for(
          params.fault, {Phase::kDispatchWait, src_rank, expert_idx, 0}, seen,
          [&] { return target::ld_acquire_system(my_cell(pair_idx)); },
          [](uint64_t cell) { return cell != kNothingArrived; });
    }
    return !target::sync_block_any(!arrived);
  }

  // Block 0: row offsets for the grouped matmul, ranges for combine_async, then the ready flag for the other blocks.
  SWITCHYARD_DEVICE bool publish_offsets() {
    const int n_local_experts = shape.n_local_experts();
    for (int expert_idx = target::thread_idx(); expert_idx < n_local_experts; expert_idx += target::num_threads()) {
      uint32_t num_rows = 0;
      for (int rank = 0; rank < shape.n_ranks(); ++rank)
        num_rows += arrivals(expert_idx * shape.n_ranks() + rank).num_rows();
      shared.row_begin[expert_idx] = align_up(num_rows, params.format.row_alignment());
    }
    target::sync_block();
    if (target::warp_idx() == 0) warp_exclusive_scan(shared.row_begin, n_local_experts);
    target::sync_block();
    const uint32_t total_rows = shared.row_begin[n_local_experts];
    if (total_rows > params.max_rows) {
      if (target::thread_idx() == 0)
        raise_fault(params.fault, FaultKind::kTooManyRows, {Phase::kDispatchWait, -1, -1, params.max_rows}, total_rows,
                    0);
      return false;
    }
    for (int expert_idx = target::thread_idx(); expert_idx < n_local_experts; expert_idx += target::num_threads())
      publish_expert(expert_idx);
    if (target::thread_idx() == 0) params.row_offsets[n_local_experts] = total_rows;
    target::sync_block();
    // release: publishes the regions above and the acquired messages; pairs with wait_for_offsets()
    if (target::thread_idx() == 0) target::st_release_device(counters.offsets_ready(), 1);
    return true;
  }

  SWITCHYARD_DEVICE void publish_expert(int expert_idx) {
    uint32_t row = shared.row_begin[expert_idx];
    params.row_offsets[expert_idx] = row;
    params.expert_ids[expert_idx] = expert_idx;
    uint32_t num_messages_before = 0;
    for (int rank = 0; rank < shape.n_ranks(); ++rank) {
      const int pair_idx = expert_idx * shape.n_ranks() + rank;
      const ArrivalCount count = arrivals(pair_idx);
      row += count.num_rows();
      *counters.row_end(pair_idx) = static_cast<int32_t>(row);
      *counters.row_count(pair_idx) = static_cast<int32_t>(count.num_rows());
      *counters.first_in_expert(pair_idx) = static_cast<int32_t>(num_messages_before);
      num_messages_before += count.num_messages;
    }
  }

  // Other blocks: true in all threads of the block once the offsets are there.
  SWITCHYARD_DEVICE bool wait_for_offsets() {
    bool ready = true;
    if (target::thread_idx() == 0) {
      int32_t seen = 0;
      // acquire: offsets and messages; pairs with the release in publish_offsets()
      ready = wait_for(
          params.fault, {Phase::kDispatchWait, params.my_rank, -1, 1}, seen,
          [&] { return target::ld_acquire_device(counters.offsets_ready()); },
          [](int32_t flag) { return flag == 1; });
    }
    return ready;
  }

  SWITCHYARD_DEVICE void decode_arrivals() {
    const int num_pairs = shape.n_experts();
    shared.messages.fill(num_pairs, [&](int pair_idx) { return arrivals(pair_idx).num_messages; });
    for_each_row(shared.messages.total(num_pairs), [&](uint32_t message_idx, int worker_idx, int num_workers) {
      const int pair_idx = shared.messages.find(message_idx, num_pairs);
      decode(pair_idx, message_idx - shared.messages.first[pair_idx], worker_idx, num_workers);
    });
  }

  SWITCHYARD_DEVICE const std::byte* message_of(int pair_idx, uint32_t slot) const {
    return recv_layout.message(params.recv_bufs.of_rank[params.my_rank], pair_idx / shape.n_ranks(),
                               pair_idx % shape.n_ranks(), slot);
  }

  // Which k of the message's token chose this expert, as a bit mask.
  SWITCHYARD_DEVICE bool names_expert(const std::byte* message, int k, int expert_idx) const {
    return reinterpret_cast<const uint16_t*>(message + message_layout.expert_ids_offset())[k] == expert_idx;
  }

  SWITCHYARD_DEVICE void decode(int pair_idx, uint32_t slot, int worker_idx, int num_workers) {
    const std::byte* message = message_of(pair_idx, slot);
    const int expert_idx = params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
    const int src_token = *reinterpret_cast<const int32_t*>(message + message_layout.src_token_offset());
    const int lane_idx = target::lane_idx();
    uint32_t mentions = target::ballot(lane_idx < shape.top_k() && names_expert(message, lane_idx, expert_idx));
    const uint32_t first_row = static_cast<uint32_t>(*counters.row_end(pair_idx) - *counters.row_count(pair_idx));
    uint32_t row = first_row + slot;
    uint32_t next_extra_row = 0;
    if (target::popcount(mentions) > 1)
      next_extra_row = first_row + arrivals(pair_idx).num_messages + extra_rows_before(pair_idx, slot, expert_idx);
    // One row per mention: the first at the message's own place, the others behind all messages of the pair.
    while (mentions != 0) {
      params.format.decode(message, row, worker_idx, num_workers);
      if (worker_idx == 0) {
        params.src_info[2 * int64_t{row}] = src_token;
        params.src_info[2 * int64_t{row} + 1] = target::lowest_set_bit(mentions);
      }
      mentions &= mentions - 1;
      row = next_extra_row++;
    }
  }

  // Extra rows of the messages in earlier slots of the pair. By a whole warp; only where ids repeat within a token.
  SWITCHYARD_DEVICE uint32_t extra_rows_before(int pair_idx, uint32_t slot, int expert_idx) const {
    uint32_t num_extra = 0;
    for (uint32_t earlier = static_cast<uint32_t>(target::lane_idx()); earlier < slot; earlier += kWarpSize) {
      uint32_t num_mentions = 0;
      for (int k = 0; k < shape.top_k(); ++k) num_mentions += names_expert(message_of(pair_idx, earlier), k, expert_idx);
      num_extra += num_mentions - 1;
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) num_extra += target::shuffle_xor(num_extra, mask);
    return num_extra;
  }

  // The last block out puts everything back for the next step.
  SWITCHYARD_DEVICE void leave() {
    target::sync_block();
    if (target::thread_idx() == 0)
      // acq_rel: every block's reads of flag and cells come before the last block's resets
      shared.is_last_block =
          target::atomic_add_acq_rel_device(counters.blocks_left(), 1) == target::num_blocks() - 1;
    target::sync_block();
    if (!shared.is_last_block) return;
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts(); pair_idx += target::num_threads())
      target::st_relaxed_system(my_cell(pair_idx), kNothingArrived);
    if (target::thread_idx() == 0) {
      target::st_relaxed_device(counters.offsets_ready(), 0);
      target::st_relaxed_device(counters.blocks_left(), 0);
    }
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
