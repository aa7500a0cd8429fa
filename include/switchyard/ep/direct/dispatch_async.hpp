// dispatch_async, direct protocol: ranks tell each other how many rows they have for every expert; from that
// each computes where every row of its own goes, and bulk copies carry a token from shared memory straight
// to its top_k rows. Rows are ordered by expert, then source rank, then token, then k; no atomic decides.
#pragma once

#include "switchyard/ep/direct/carry_encoded.hpp"
#include "switchyard/ep/direct/stages.hpp"
#include "switchyard/ep/direct/wait_for_step.hpp"
#include "switchyard/ep/mutant.hpp"
#include "switchyard/ep/pair_table.hpp"
#include "switchyard/ep/params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct alignas(128) DirectDispatchShared {
  uint32_t num_rows[kMaxExperts];       // that this rank sends to each expert
  uint32_t next_row[kMaxExperts];       // of this block, counted from this rank's first of the expert
  uint32_t my_first_row[kMaxExperts];   // where this rank's rows of each expert begin on its owner
  uint32_t first_row[kMaxExperts + 1];  // all ranks' rows of each expert, then where they begin
  uint32_t warp_sums[1024 / kWarpSize];
  target::TransferBarrier loaded[DirectStages::kMaxStages];
  bool is_last_block;
  // Behind it: DirectStages, as many as the launch gave room for.

  // What to give a launch that may have `limit`.
  template <typename Format>
  SWITCHYARD_HD static constexpr uint64_t bytes(const Format& format, int hidden, uint64_t limit);
};
template <typename Format>
SWITCHYARD_HD constexpr uint64_t DirectDispatchShared::bytes(const Format& format, int hidden,
                                                             uint64_t limit) {
  return sizeof(DirectDispatchShared) +
         DirectStages::of(format, hidden, limit - sizeof(DirectDispatchShared)).bytes();
}

template <FixedShape Fixed, typename Format>
struct DirectDispatchAsync {
  using Params = DispatchParams<Format>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.counters};
  DirectDispatchShared& shared = target::shared_storage<DirectDispatchShared>();
  const uint32_t token_bytes =
      static_cast<uint32_t>(shape.hidden()) * static_cast<uint32_t>(sizeof(typename Format::Input));
  const uint32_t row_bytes = output_row_bytes(params.format, token_bytes);
  const DirectStages stages =
      DirectStages::of(params.format, shape.hidden(), target::shared_bytes() - sizeof(DirectDispatchShared));
  const uint32_t step = 1 + static_cast<uint32_t>(target::ld(counters.num_steps()));
  // The tokens of this block.
  const int token_begin = first_token_of(target::block_idx());
  const int token_end = first_token_of(target::block_idx() + 1);
  const Carriers carriers = Carriers::share(token_end - token_begin, stages, target::num_warps());

  SWITCHYARD_DEVICE explicit DirectDispatchAsync(const Params& params_in) : params(params_in) {}

  // Tokens go as they are, or become rows of their own size.
  SWITCHYARD_DEVICE static uint32_t output_row_bytes(const Format& format, uint32_t token_bytes) {
    if constexpr (InPlaceTokenFormat<Format>)
      return format.row_bytes();
    else
      return token_bytes;
  }
  // Where the stages are.
  SWITCHYARD_DEVICE std::byte* room() const { return reinterpret_cast<std::byte*>(&shared + 1); }

  SWITCHYARD_DEVICE int first_token_of(int block_idx) const {
    return static_cast<int>(static_cast<int64_t>(params.num_tokens) * block_idx / target::num_blocks());
  }

  SWITCHYARD_DEVICE void run() {
    const bool is_well = finds_no_poison(params.fault);  // looked at later: the load takes its time
    begin();
    start_loads();  // the first tokens are on their way while the ranks agree where they go
    if (!count_rows(is_well)) return drain_loads();  // an earlier step broke and has not been reset
    send_counts();
    rank_rows();                                  // while the counts are on their way
    if (!collect_counts()) return drain_loads();  // a fault: the host resets everything
    if (place_experts()) {
      place_rows();
      if constexpr (InPlaceTokenFormat<Format>)
        CarryEncoded<DirectDispatchAsync>(*this).run();
      else
        carry_rows();
    } else {
      drain_loads();
    }
    finish();
  }

  SWITCHYARD_DEVICE void begin() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kBegin);
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      shared.num_rows[expert_idx] = 0;
      shared.next_row[expert_idx] = 0;
      shared.my_first_row[expert_idx] = 0;
      shared.first_row[expert_idx] = 0;
    }
    if (target::thread_idx() < carriers.num_carriers * carriers.stages_each)
      shared.loaded[target::thread_idx()].init(1);
    target::sync_block();
  }

  // Counts this rank's rows per expert, and apart from them those of the blocks before this one. Says whether
  // all threads of the block are well.
  SWITCHYARD_DEVICE bool count_rows(bool is_well) {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kCountRows);
    const int64_t num_ids = static_cast<int64_t>(params.num_tokens) * shape.top_k();
    const int64_t first_id = static_cast<int64_t>(token_begin) * shape.top_k();
    constexpr int kInFlight = 8;
    for (int64_t i = target::thread_idx(); i < num_ids;
         i += static_cast<int64_t>(kInFlight) * target::num_threads()) {
      int ids[kInFlight];
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t id_idx = i + static_cast<int64_t>(j) * target::num_threads();
        ids[j] = id_idx < num_ids ? params.topk_ids[id_idx] : -1;
      }
      for (int j = 0; j < kInFlight; ++j) {
        if (ids[j] == -1) continue;
        if (kChecked && (ids[j] < 0 || ids[j] >= shape.n_experts())) {
          report_bad_id(ids[j]);
          continue;
        }
        target::atomic_add_relaxed_block(&shared.num_rows[ids[j]], 1u);
        if (i + static_cast<int64_t>(j) * target::num_threads() < first_id &&
            !is_mutant<Fixed>(LogicMutant::kPlacedWithoutBlocksBefore))
          target::atomic_add_relaxed_block(&shared.next_row[ids[j]], 1u);
      }
    }
    return sync_block_all_well(is_well);
  }

  SWITCHYARD_DEVICE void report_bad_id(int id) const {
    if (target::block_idx() != 0) return;
    raise_fault(params.fault, FaultKind::kBadExpertId,
                {Phase::kDispatchAsync, params.my_rank, -1, static_cast<uint64_t>(shape.n_experts())},
                static_cast<uint64_t>(static_cast<int64_t>(id)), 0);
  }

  SWITCHYARD_DEVICE CountTableLayout count_table() const { return {shape.n_ranks(), shape.n_experts()}; }

  // Every block tells some of the ranks.
  SWITCHYARD_DEVICE void send_counts() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kSendCounts);
    for (int rank = target::block_idx(); rank < shape.n_ranks(); rank += target::num_blocks())
      for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
           expert_idx += target::num_threads())
        // release: this rank has done with the step before, so its rows and expert output may be written
        // over; pairs with the acquire in collect_counts() over there
        target::st_release_system(
            count_table().cell(params.count_tables.of_rank[rank], params.my_rank, expert_idx),
            StepCell{step, shared.num_rows[expert_idx]}.pack());
  }

  // Waits for the counts of all ranks and sums them up.
  SWITCHYARD_DEVICE bool collect_counts() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kCollectCounts);
    bool arrived = true;
    const int num_waiting = target::num_warps() == 1 ? kWarpSize : target::num_threads() - kWarpSize;
    for (int cell_idx = target::thread_idx();
         target::thread_idx() < num_waiting && cell_idx < shape.n_ranks() * shape.n_experts();
         cell_idx += num_waiting) {
      const int src_rank = cell_idx / shape.n_experts();
      const int expert_idx = cell_idx % shape.n_experts();
      uint32_t num_rows = 0;
      const uint64_t* cell =
          count_table().cell(params.count_tables.of_rank[params.my_rank], src_rank, expert_idx);
      if (is_mutant<Fixed>(LogicMutant::kCountsNotAwaited))
        num_rows = StepCell::unpack(target::ld_acquire_system(cell)).value;
      else
        // acquire: the rank has done with the step before; pairs with the release in its send_counts()
        arrived &=
            wait_for_step(params.fault, Phase::kDispatchAsync, src_rank, expert_idx, step, cell, num_rows);
      if (num_rows == 0) continue;
      target::atomic_add_relaxed_block(&shared.first_row[expert_idx], num_rows);
      if (src_rank < params.my_rank && !is_mutant<Fixed>(LogicMutant::kPlacedWithoutRanksBefore))
        target::atomic_add_relaxed_block(&shared.my_first_row[expert_idx], num_rows);
    }
    return sync_block_all_well(arrived);
  }

  // Where each expert's rows begin on its owner. False if they do not fit, on any rank: all ranks see the
  // same counts, so all of them skip the step.
  SWITCHYARD_DEVICE bool place_experts() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kPlaceExperts);
    const int n_local_experts = shape.n_local_experts();
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads())
      shared.first_row[expert_idx] = align_up(shared.first_row[expert_idx], params.format.row_alignment());
    target::sync_block();
    block_exclusive_scan(shared.first_row, shape.n_experts(), shared.warp_sums);
    bool is_too_much = false;
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads()) {
      const uint32_t num_rows =
          shared.first_row[(rank + 1) * n_local_experts] - shared.first_row[rank * n_local_experts];
      if (num_rows <= params.max_rows + is_mutant<Fixed>(LogicMutant::kCapacityOffByOne)) continue;
      if (rank != params.my_rank && is_mutant<Fixed>(LogicMutant::kCapacityOfOwnRankOnly)) continue;
      is_too_much = true;
      if (target::block_idx() == 0)
        record_fault(*params.fault.skipped, params.my_rank, FaultKind::kOverCapacity,
                     {Phase::kDispatchAsync, rank, -1, params.max_rows}, num_rows, 0);
    }
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads())
      shared.my_first_row[expert_idx] +=
          shared.first_row[expert_idx] - shared.first_row[shape.owner_rank(expert_idx) * n_local_experts];
    const bool is_skipped = target::sync_block_any(is_too_much);
    if (target::block_idx() == 0) publish_offsets(is_skipped);
    return !is_skipped;
  }

  SWITCHYARD_DEVICE void publish_offsets(bool is_skipped) {
    const uint32_t* first_row = shared.first_row + params.my_rank * shape.n_local_experts();
    for (int expert_idx = target::thread_idx(); expert_idx <= shape.n_local_experts();
         expert_idx += target::num_threads())
      target::st(counters.row_offset(expert_idx),
                 is_skipped ? 0 : static_cast<int32_t>(first_row[expert_idx] - first_row[0]));
    if (target::thread_idx() == 0) target::st(counters.is_skipped(), static_cast<int32_t>(is_skipped));
  }

  // The warp that numbers rows; where there are others, those wait for the counts.
  SWITCHYARD_DEVICE bool is_ranker() const { return target::warp_idx() == target::num_warps() - 1; }

  // Numbers this block's rows of each expert in the order of (token, k), from where the blocks before it end.
  // By one warp; the numbers wait in row_of.
  SWITCHYARD_DEVICE void rank_rows() {
    if (!is_ranker()) return;
    constexpr int kInFlight = 8;
    const int64_t id_end = static_cast<int64_t>(token_end) * shape.top_k();
    for (int64_t first = static_cast<int64_t>(token_begin) * shape.top_k(); first < id_end;
         first += kInFlight * kWarpSize) {
      int expert_of_id[kInFlight];
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t id_idx = first + i * kWarpSize + target::lane_idx();
        expert_of_id[i] = id_idx < id_end ? expert_of(id_idx) : -1;
      }
      for (int i = 0; i < kInFlight; ++i)
        if (first + i * kWarpSize < id_end)
          rank_warp_of_ids(first + i * kWarpSize + target::lane_idx(), expert_of_id[i]);
    }
  }

  SWITCHYARD_DEVICE void rank_warp_of_ids(int64_t id_idx, int expert_idx) {
    const uint32_t same = target::match_any(static_cast<uint32_t>(expert_idx));
    const uint32_t same_below = same & ((1u << target::lane_idx()) - 1);
    const uint32_t next_row = expert_idx >= 0 ? shared.next_row[expert_idx] : 0;
    target::sync_warp();
    if (expert_idx >= 0) {
      if (same_below == 0)
        shared.next_row[expert_idx] = next_row + static_cast<uint32_t>(target::popcount(same));
      target::st(&params.row_of[id_idx], next_row + static_cast<uint32_t>(target::popcount(same_below)));
    }
    target::sync_warp();
  }

  SWITCHYARD_DEVICE int expert_of(int64_t id_idx) const {
    const int id = params.topk_ids[id_idx];
    return id >= 0 && (!kChecked || id < shape.n_experts()) ? id : -1;
  }

  // Every (token, k) of this block gets its row on the expert's owner.
  SWITCHYARD_DEVICE void place_rows() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kPlaceRows);
    for (int64_t id_idx = static_cast<int64_t>(token_begin) * shape.top_k() + target::thread_idx();
         id_idx < static_cast<int64_t>(token_end) * shape.top_k(); id_idx += target::num_threads()) {
      const int expert_idx = expert_of(id_idx);
      if (expert_idx < 0) continue;
      const uint32_t row = shared.my_first_row[expert_idx] + target::ld(&params.row_of[id_idx]);
      target::st(&params.row_of[id_idx], row);
      const uint64_t src_info =
          static_cast<uint64_t>(id_idx % shape.top_k()) << 32 | static_cast<uint64_t>(id_idx / shape.top_k());
      target::st(reinterpret_cast<uint64_t*>(params.src_infos.of_rank[shape.owner_rank(expert_idx)]) + row,
                 src_info);
    }
    target::sync_block();
  }

  SWITCHYARD_DEVICE bool is_carrier() const { return target::warp_idx() < carriers.num_carriers; }
  SWITCHYARD_DEVICE int token_of_turn(int turn) const {
    return token_begin + target::warp_idx() + turn * carriers.num_carriers;
  }
  SWITCHYARD_DEVICE int stage_of_turn(int turn) const {
    return target::warp_idx() * carriers.stages_each + turn % carriers.stages_each;
  }

  SWITCHYARD_DEVICE void start_load(int turn) {
    if (target::lane_idx() != 0 || token_of_turn(turn) >= token_end) return;
    target::TransferBarrier& barrier = shared.loaded[stage_of_turn(turn)];
    barrier.arrive_expect(token_bytes);
    target::bulk_load(stages.stage(room(), stage_of_turn(turn)),
                      static_cast<const std::byte*>(params.input_tokens) +
                          static_cast<uint64_t>(token_of_turn(turn)) * token_bytes,
                      token_bytes, barrier);
  }
  SWITCHYARD_DEVICE void await_load(int turn) {
    const uint32_t parity = static_cast<uint32_t>(turn / carriers.stages_each % 2);
    target::wait_until([&] { return shared.loaded[stage_of_turn(turn)].done(parity); }, kNoDeadline);
  }

  SWITCHYARD_DEVICE void start_loads() {
    if (!is_carrier()) return;
    for (int turn = 0; turn < carriers.stages_each; ++turn) start_load(turn);
  }
  // A block must not end while something is being written into its shared memory.
  SWITCHYARD_DEVICE void drain_loads() {
    if (!is_carrier()) return;
    for (int turn = 0; turn < carriers.stages_each && token_of_turn(turn) < token_end; ++turn)
      await_load(turn);
  }

  SWITCHYARD_DEVICE void carry_rows() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kCarryRows);
    if (!is_carrier()) return;
    target::fence_proxy_async();  // who read the rows of the step before did so by ordinary loads
    std::byte* row = row_of_turn(0);
    for (int turn = 0; token_of_turn(turn) < token_end; ++turn) {
      std::byte* next_row = row_of_turn(turn + 1);
      if (turn > 0) {
        // The stage that the last turn's copies have read takes the next token in.
        if (!is_mutant<Fixed>(LogicMutant::kDirectStageNotWaitedFor)) target::bulk_wait_read<0>();
        target::sync_warp();
        start_load(turn + carriers.stages_each - 1);
      }
      await_load(turn);
      if (row != nullptr) target::bulk_store(row, stages.stage(room(), stage_of_turn(turn)), row_bytes);
      target::bulk_commit();
      row = next_row;
    }
    target::bulk_wait<0>();
    target::fence_proxy_async();
  }

  // Lane k: the row of the token's choice k, null if there is none.
  SWITCHYARD_DEVICE std::byte* row_of_turn(int turn) const {
    if (target::lane_idx() >= shape.top_k() || token_of_turn(turn) >= token_end) return nullptr;
    const int64_t id_idx = static_cast<int64_t>(token_of_turn(turn)) * shape.top_k() + target::lane_idx();
    const int expert_idx = expert_of(id_idx);
    if (expert_idx < 0) return nullptr;
    return params.recv_bufs.of_rank[shape.owner_rank(expert_idx)] +
           static_cast<uint64_t>(target::ld(&params.row_of[id_idx])) * row_bytes;
  }

  // The last block tells the owners that this rank's rows are there, expert by expert.
  SWITCHYARD_DEVICE void finish() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kFinish);
    target::sync_block();
    if (target::thread_idx() == 0)
      // acq_rel: collects the copies of all blocks before the last one signals; pairs with itself in the
      // other blocks
      shared.is_last_block = target::atomic_add_acq_rel_device(counters.blocks_done(), 1) ==
                             (is_mutant<Fixed>(LogicMutant::kFirstBlockReady) ? 0 : target::num_blocks() - 1);
    target::sync_block();
    if (!shared.is_last_block) return;
    const DispatchCountLayout ready{shape.n_experts(), shape.n_ranks()};
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads())
      // release: hands the owner this rank's rows of the expert; pairs with the acquire in dispatch_wait
      // over there, and with who looks at the readiness of an expert before
      target::st_release_system(ready.cell(params.recv_counts.of_rank[shape.owner_rank(expert_idx)],
                                           shape.local_expert(expert_idx), params.my_rank),
                                StepCell{step, shared.num_rows[expert_idx]}.pack());
    if (target::thread_idx() == 0) target::st_relaxed_device(counters.blocks_done(), 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
