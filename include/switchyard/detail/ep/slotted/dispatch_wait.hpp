// dispatch_wait: every block waits for the counts of all ranks, turns them into row offsets and decodes its
// share of the messages into the ragged output. Block 0 also writes the offsets out.
#pragma once

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/slotted/dispatch_async.hpp"
#include "switchyard/detail/sync/rank_waits.hpp"
#include "switchyard/detail/sync/signal.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct SlottedDispatchWaitShared {
  PairTable messages;
  uint32_t first_row[kMaxExperts];         // [pair]: its number of rows, then its first row
  uint32_t row_end[kMaxExperts];           // [pair]
  uint32_t expert_begin[kMaxExperts + 1];  // [local expert]: its padded number of rows, then its first row
};

template <FixedShape Fixed, typename Format>
struct SlottedDispatchWait {
  using Params = DispatchParams<SlottedDispatchPart, Format>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  EPLocalSyncCounters<Fixed::kShape.n_experts> counters{params.ep_counters};
  MessageLayout message_layout{params.format.encoded_bytes(), shape.top_k()};
  DispatchRecvLayout recv_layout{shape.n_local_experts(), shape.n_ranks(), shape.max_tokens_per_rank(),
                                 message_layout.bytes()};
  SlottedDispatchWaitShared& shared = target::shared_storage<SlottedDispatchWaitShared>();

  SWITCHYARD_DEVICE explicit SlottedDispatchWait(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (!collect_counts()) return;  // a fault: the host resets all counters
    admit_successor();
    build_tables();
    const uint32_t num_rows = shared.expert_begin[shape.n_local_experts()];
    if (kChecked && num_rows > params.max_rows) {
      if (target::block_idx() == 0 && target::thread_idx() == 0)
        raise_fault(params.wait_context, FaultKind::kTooManyRows,
                    {Phase::kDispatchWait, -1, -1, params.max_rows}, num_rows, 0);
      return;
    }
    if (target::block_idx() == 0) publish_offsets();
    if (target::warp_idx() == 0) reset_cells();
    decode_shared_expert();
    decode_arrivals();
  }

  // The cell of a (local expert, source rank) pair in this rank's memory.
  SWITCHYARD_DEVICE uint64_t* my_cell(int pair_idx) const { return params.recv_counts.mine + pair_idx; }
  SWITCHYARD_DEVICE void note_arrivals(int pair_idx, uint64_t cell) {
    const ArrivalCount count = ArrivalCount::unpack(cell);
    shared.messages.first[pair_idx] = count.num_messages;
    shared.first_row[pair_idx] = count.num_rows();
  }

  // Waits for the counts of every rank for every expert here.
  SWITCHYARD_DEVICE bool collect_counts() {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchWait, TraceName::kCollectCounts);
    const uint64_t since_ns = time_ranks(params, Phase::kDispatchWait, shape.n_ranks(), target::num_threads(),
                                         [&](int src_rank) { return has_come(src_rank); });
    bool arrived = is_unpoisoned(params.wait_context);
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts();
         pair_idx += target::num_threads()) {
      const int src_rank = pair_idx % shape.n_ranks();
      const int expert_idx = params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
      uint64_t seen = kNothingArrived;
      // acquire MM-02: the rank's messages for this expert; pairs with the release in its watch()
      arrived &= AwaitedSignal{params.wait_context, my_cell(pair_idx)}.wait_until(
          {Phase::kDispatchWait, src_rank, expert_idx, 0}, seen,
          [](uint64_t cell) { return cell != kNothingArrived; }, since_ns);
      note_arrivals(pair_idx, seen);
    }
    return sync_block_all(arrived);
  }
  // Whether the rank has signalled for every expert here.
  SWITCHYARD_DEVICE bool has_come(int src_rank) const {
    SWITCHYARD_ROLLED
    for (int pair_idx = src_rank; pair_idx < shape.n_experts(); pair_idx += shape.n_ranks())
      if (target::ld_relaxed_system(my_cell(pair_idx)) == kNothingArrived) return false;
    return true;
  }

  // Turns counts into offsets, in shared memory: messages end to end, rows with each expert's padding.
  SWITCHYARD_DEVICE void build_tables() {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchWait, TraceName::kBuildTables);
    const int n_local_experts = shape.n_local_experts();
    for (int expert_idx = target::thread_idx(); expert_idx < n_local_experts;
         expert_idx += target::num_threads()) {
      uint32_t num_rows = 0;
      for (int rank = 0; rank < shape.n_ranks(); ++rank)
        num_rows += shared.first_row[expert_idx * shape.n_ranks() + rank];
      shared.expert_begin[expert_idx] =
          mutate<Fixed, LogicMutant::kMaskedGroupsPacked>(params.group_layout.taken_by(num_rows), num_rows);
    }
    target::sync_block();
    const int last_warp = target::num_warps() - 1;
    if (target::warp_idx() == 0) assign_experts();
    if (target::warp_idx() == last_warp) shared.messages.scan(shape.n_experts());
    target::sync_block();
    for (int expert_idx = target::thread_idx(); expert_idx < n_local_experts;
         expert_idx += target::num_threads()) {
      uint32_t row = shared.expert_begin[expert_idx];
      for (int rank = 0; rank < shape.n_ranks(); ++rank) {
        uint32_t& first_row = shared.first_row[expert_idx * shape.n_ranks() + rank];
        const uint32_t num_rows = first_row;
        first_row = mutate<Fixed, LogicMutant::kRowsWithoutRankOffset>(row, shared.expert_begin[expert_idx]);
        row += num_rows;
        shared.row_end[expert_idx * shape.n_ranks() + rank] = row;
      }
    }
    target::sync_block();
  }

  // Turns each expert's number of rows into its first row, behind those of the shared expert.
  // Called by one warp.
  SWITCHYARD_DEVICE void assign_experts() {
    const int n_local_experts = shape.n_local_experts();
    warp_exclusive_scan(shared.expert_begin, n_local_experts);
    target::sync_warp();
    const uint32_t shared_rows =
        params.shared_expert.num_groups == 0
            ? 0
            : params.group_layout.taken_by(static_cast<uint32_t>(params.shared_expert.num_tokens));
    for (int expert_idx = target::lane_idx(); expert_idx <= n_local_experts; expert_idx += kWarpSize)
      shared.expert_begin[expert_idx] += shared_rows;
  }

  // Returns the first row of a local expert's group, or of the shared expert's (expert_idx -1).
  SWITCHYARD_DEVICE uint32_t group_begin(int expert_idx) const {
    return expert_idx < 0 ? 0 : shared.expert_begin[expert_idx];
  }

  SWITCHYARD_DEVICE uint32_t rows_of_group(int expert_idx) const {
    if (expert_idx < 0) return static_cast<uint32_t>(params.shared_expert.num_tokens);
    const int last_rank = mutate<Fixed, LogicMutant::kRowCountOfOneRank>(shape.n_ranks() - 1, 0);
    return shared.row_end[expert_idx * shape.n_ranks() + last_rank] - shared.expert_begin[expert_idx];
  }

  // Block 0 writes row offsets for the grouped matmul, and each rank's rows for combine_async.
  SWITCHYARD_DEVICE void publish_offsets() {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchWait, TraceName::kPublishOffsets);
    const int first_group = params.shared_expert.num_groups;  // of the local experts
    const int num_groups = first_group + shape.n_local_experts();
    for (int group_idx = target::thread_idx(); group_idx <= num_groups; group_idx += target::num_threads()) {
      target::st(&params.row_offsets[group_idx], group_begin(group_idx - first_group));
      if (group_idx == num_groups) continue;
      target::st(&params.expert_ids[group_idx], group_idx);
      if (params.row_counts != nullptr)
        target::st(&params.row_counts[group_idx], rows_of_group(group_idx - first_group));
      if constexpr (ExpertTokenFormat<Format>)
        params.format.publish_expert(group_idx, group_begin(group_idx - first_group));
    }
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts();
         pair_idx += target::num_threads()) {
      const uint32_t first_row = shared.first_row[pair_idx], row_end = shared.row_end[pair_idx];
      target::st(counters.row_end(pair_idx), static_cast<int32_t>(row_end));
      target::st(counters.row_count(pair_idx), static_cast<int32_t>(row_end - first_row));
      target::st(counters.first_in_expert(pair_idx),
                 static_cast<int32_t>(first_row - shared.expert_begin[pair_idx / shape.n_ranks()]));
    }
  }

  // This rank's own tokens, as dispatch_async left them in the send buffer. A block decodes those it has sent
  // itself: in a fused launch nothing else orders the buffer.
  SWITCHYARD_DEVICE void decode_shared_expert() {
    if (params.shared_expert.num_tokens == 0) return;
    const int num_senders = target::num_blocks() > 1 ? target::num_blocks() - 1 : 1;
    const int first_token = target::num_blocks() > 1 ? target::block_idx() - 1 : 0;
    if (first_token < 0) return;  // the watcher
    const DispatchSendLayout sent = slotted_send_layout<Fixed, Format>(shape, message_layout.bytes());
    for (int token_idx = first_token + target::warp_idx() * num_senders; token_idx < params.num_tokens;
         token_idx += target::num_warps() * num_senders) {
      const int row = params.shared_expert.row_of(token_idx);
      if (row < 0) continue;
      decode_into(sent.message(params.send_buf, token_idx, shape.top_k()), row, -1, target::lane_idx(),
                  kWarpSize);
      if (target::lane_idx() != 0) continue;
      target::st(&params.src_info[2 * int64_t{row}], token_idx);
      target::st(&params.src_info[2 * int64_t{row} + 1], -1);
    }
  }

  // Decodes a message into a row of a local expert, or of the shared expert (expert_idx -1).
  SWITCHYARD_DEVICE void decode_into(const std::byte* message, int64_t row, [[maybe_unused]] int expert_idx,
                                     int worker_idx, int num_workers) const {
    if constexpr (ExpertTokenFormat<Format>)
      params.format.decode(
          message, ExpertRow{row, group_begin(expert_idx), params.shared_expert.num_groups + expert_idx},
          worker_idx, num_workers);
    else
      params.format.decode(message, row, worker_idx, num_workers);
  }

  SWITCHYARD_DEVICE void decode_arrivals() {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchWait, TraceName::kDecode);
    const int num_pairs = shape.n_experts();
    for_each_row(shared.messages.total(num_pairs),
                 [&](uint32_t message_idx, int worker_idx, int num_workers) {
                   const int pair_idx = shared.messages.find(message_idx, num_pairs);
                   decode(pair_idx, message_idx - shared.messages.first[pair_idx], worker_idx, num_workers);
                 });
  }

  SWITCHYARD_DEVICE const std::byte* message_of(int pair_idx, uint32_t slot) const {
    return recv_layout.message(params.recv_bufs.mine, pair_idx / shape.n_ranks(), pair_idx % shape.n_ranks(),
                               mutate<Fixed, LogicMutant::kReceiveSlotOffByOne>(slot, slot + 1));
  }
  SWITCHYARD_DEVICE bool names_expert(const std::byte* message, int k, int expert_idx) const {
    const auto* ids = reinterpret_cast<const uint16_t*>(message + message_layout.expert_ids_offset());
    return target::ld(ids + k) == expert_idx;
  }

  SWITCHYARD_DEVICE void decode(int pair_idx, uint32_t slot, int worker_idx, int num_workers) {
    const std::byte* message = message_of(pair_idx, slot);
    const int expert_idx = params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
    const int src_token =
        target::ld(reinterpret_cast<const int32_t*>(message + message_layout.src_token_offset()));
    const int lane_idx = target::lane_idx();
    // Bit k is set if the token's choice k is this expert.
    uint32_t mentions =
        target::ballot(lane_idx < shape.top_k() && names_expert(message, lane_idx, expert_idx));
    uint32_t row = shared.first_row[pair_idx] + slot;
    uint32_t next_extra_row = 0;
    if (target::popcount(mentions) > 1) {
      if (worker_idx >= kWarpSize) return;  // one warp alone takes the extra rows
      num_workers = kWarpSize;
      next_extra_row = shared.first_row[pair_idx] + shared.messages.count(pair_idx) +
                       take_extra_rows(pair_idx, target::popcount(mentions) - 1);
    }
    // One row per mention: the first in the message's own row, the others behind all messages of the pair.
    while (mentions != 0) {
      decode_into(message, row, pair_idx / shape.n_ranks(), worker_idx, num_workers);
      if (worker_idx == 0) {
        target::st(&params.src_info[2 * int64_t{row}], src_token);
        target::st(&params.src_info[2 * int64_t{row} + 1], target::lowest_set_bit(mentions));
      }
      mentions &= mentions - 1;
      row = next_extra_row++;
    }
  }

  // Reserves `count` of the rows that repeated ids make, and returns the first. Called by a whole warp;
  // combine_async resets the counter.
  SWITCHYARD_DEVICE uint32_t take_extra_rows(int pair_idx, int count) const {
    int32_t first = 0;
    if (target::lane_idx() == 0)
      first = target::atomic_add_relaxed_device(counters.extra_rows(pair_idx), count);
    return static_cast<uint32_t>(target::shuffle(first, 0));
  }

  // The last block to read the cells resets them for the next step: one warp does, while the others decode.
  SWITCHYARD_DEVICE void reset_cells() {
    int32_t num_before = 0;
    // acq_rel MM-03: every block's reads of the cells come before the last block's resets; pairs with itself
    if (target::lane_idx() == 0) num_before = target::atomic_add_acq_rel_device(counters.blocks_left(), 1);
    const bool is_last_block = target::shuffle(num_before, 0) == target::num_blocks() - 1;
    if (!mutate<Fixed, LogicMutant::kCellsResetTooEarly>(is_last_block, true)) return;
    for (int pair_idx = target::lane_idx(); pair_idx < shape.n_experts(); pair_idx += kWarpSize)
      target::st_relaxed_system(my_cell(pair_idx), kNothingArrived);
    if (target::lane_idx() == 0) target::st_relaxed_device(counters.blocks_left(), 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
