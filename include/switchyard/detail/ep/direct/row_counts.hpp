// How many rows go where: every rank counts its rows for each expert, tells the others, and computes from all
// counts where each expert's rows begin on its owner, and where its own begin among them.
#pragma once

#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/direct/far_rows.hpp"
#include "switchyard/detail/ep/direct/id_counts.hpp"
#include "switchyard/detail/ep/direct/step_signal.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/sync/rank_waits.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct RowCounts {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const ShapeOf<Fixed> shape;
  const uint32_t step;
  DirectDispatchShared& shared;

  // A sync_block must follow.
  SWITCHYARD_DEVICE void init() const {
    SWITCHYARD_ROLLED
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      shared.num_before[expert_idx] = 0;
      shared.num_from_here[expert_idx] = 0;
      shared.my_first_row[expert_idx] = 0;
      shared.first_row[expert_idx] = 0;
    }
    if (target::thread_idx() == 0) {
      shared.num_before[shape.n_experts()] = 0;
      shared.num_from_here[shape.n_experts()] = static_cast<uint32_t>(params.shared_expert.num_tokens);
    }
    SWITCHYARD_ROLLED
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads())
      shared.shared_rows[rank] = rank == params.my_rank ? own_shared_rows() : shared_expert_rows(0);
  }
  SWITCHYARD_DEVICE uint32_t own_shared_rows() const {
    return params.calls_off ? DirectDispatchShared::kCalledOff
                            : shared_expert_rows(static_cast<uint32_t>(params.shared_expert.num_tokens));
  }

  SWITCHYARD_DEVICE uint32_t shared_expert_rows(uint32_t num_tokens) const {
    return params.shared_expert.num_groups == 0 ? 0 : params.group_layout.taken_by(num_tokens);
  }

  // Counts this rank's rows per expert; first_id is the first of this block's tokens. Returns whether no
  // thread of the block has found a fault.
  SWITCHYARD_DEVICE bool count_rows(const IdBatch& first_ids, int first_id, bool is_healthy) const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kCountRows);
    const IdCounts<Fixed> counts{shape,    params.topk_ids,   params.num_tokens * shape.top_k(),
                                 first_id, shared.num_before, shared.num_from_here};
    const int largest_id = counts.count(first_ids);
    if (kChecked && !shape.is_id(largest_id)) report_bad_id(largest_id);
    return sync_block_all(is_healthy);
  }
  SWITCHYARD_DEVICE uint32_t num_rows(int expert_idx) const {
    return shared.num_before[expert_idx] + shared.num_from_here[expert_idx];
  }

  SWITCHYARD_DEVICE void report_bad_id(int id) const {
    if (target::block_idx() != 0) return;
    raise_fault(params.wait_context, FaultKind::kBadExpertId,
                {Phase::kDispatchAsync, params.my_rank, -1, static_cast<uint64_t>(shape.num_ids())},
                static_cast<uint64_t>(static_cast<int64_t>(id)), 0);
  }

  // The number of counts: one per expert, and one of the shared expert if there is one.
  SWITCHYARD_DEVICE int num_counts() const { return shape.n_experts() + params.shared_expert.num_groups; }
  SWITCHYARD_DEVICE CountTableLayout count_table() const { return {shape.n_ranks(), num_counts()}; }

  SWITCHYARD_DEVICE FarCounts<Fixed, Format> far_counts() const { return {params, step, count_table()}; }

  SWITCHYARD_DEVICE CountCell own_cell(int cell_idx) const {
    const int expert_idx = cell_idx * CountCell::kExperts;
    if (params.calls_off) return {step, {expert_idx == 0 ? CountCell::kCalledOff : 0, 0}};
    const uint32_t next_count = expert_idx + 1 < num_counts() ? num_rows(expert_idx + 1) : 0;
    return {step, {num_rows(expert_idx), next_count}};
  }

  // Every block signals some of the other ranks. This rank's own blocks have all counted for themselves.
  SWITCHYARD_DEVICE void send_counts() const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kSendCounts);
    if constexpr (kHasWire<Fixed>)
      if (target::block_idx() == 0) far_counts().send([&](int cell_idx) { return own_cell(cell_idx); });
    SWITCHYARD_ROLLED
    for (int rank = target::block_idx(); rank < shape.n_ranks(); rank += target::num_blocks()) {
      if (rank == params.my_rank) continue;
      if constexpr (kHasWire<Fixed>)
        if (far_counts().is_far(rank)) continue;
      SWITCHYARD_ROLLED
      for (int cell_idx = target::thread_idx(); cell_idx < count_table().cells_per_rank();
           cell_idx += target::num_threads())
        // release MM-08: this rank has finished the previous step, so its rows and expert output may be
        // overwritten; pairs with the acquire in collect_counts() over there
        publish<Fixed>(
            params, params.count_tables, rank,
            [&](uint64_t* cells) { return count_table().cell(cells, params.my_rank, cell_idx); },
            own_cell(cell_idx).pack());
    }
  }

  // Waits for the counts of the other ranks and sums them up.
  SWITCHYARD_DEVICE bool collect_counts() const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kCollectCounts);
    bool arrived = true;
    const int num_waiting = target::num_warps() == 1 ? kWarpSize : target::num_threads() - kWarpSize;
    const int cells_per_rank = count_table().cells_per_rank();
    // One block of a rank sends all of its counts at once, so the first cell tells when.
    const uint64_t since_ns =
        time_ranks(params, Phase::kDispatchAsync, shape.n_ranks(), num_waiting, [&](int src_rank) {
          if constexpr (kHasWire<Fixed>)
            if (far_counts().is_far(src_rank)) return far_counts().have_come(src_rank);
          return counts_of(src_rank, 0).has_come(step);
        });
    SWITCHYARD_ROLLED
    for (int idx = target::thread_idx();
         target::thread_idx() < num_waiting && idx < (shape.n_ranks() - 1) * cells_per_rank;
         idx += num_waiting) {
      const int other_rank = idx / cells_per_rank, cell_idx = idx - other_rank * cells_per_rank;
      const int src_rank = other_rank + (other_rank >= params.my_rank);
      const int expert_idx = cell_idx * CountCell::kExperts;
      const AwaitedStep<CountCell> signal = counts_of(src_rank, cell_idx);
      CountCell cell{};
      if constexpr (kHasWire<Fixed>)
        if (far_counts().is_far(src_rank)) {
          arrived &= far_counts().await(src_rank, cell_idx, cell, since_ns);
          for (int i = 0; i < CountCell::kExperts; ++i) add_count(src_rank, expert_idx + i, cell.counts[i]);
          continue;
        }
      arrived &= mutate<Fixed, LogicMutant::kCountsNotAwaited>(
          [&] {
            // acquire MM-08: the rank has finished the previous step; pairs with the release in its
            // send_counts()
            return signal.wait_until(step, Phase::kDispatchAsync, src_rank, -1, cell, since_ns);
          },
          [&] {
            signal.take(cell);
            return true;
          });
      for (int i = 0; i < CountCell::kExperts; ++i) add_count(src_rank, expert_idx + i, cell.counts[i]);
    }
    return sync_block_all(arrived);
  }
  // A cell of another rank's counts.
  SWITCHYARD_DEVICE AwaitedStep<CountCell> counts_of(int src_rank, int cell_idx) const {
    return {params.wait_context, count_table().cell(params.count_tables.mine, src_rank, cell_idx)};
  }
  SWITCHYARD_DEVICE void add_count(int src_rank, int expert_idx, uint32_t count) const {
    if (count == 0) return;
    if (expert_idx == 0 && count == CountCell::kCalledOff) {
      shared.shared_rows[src_rank] = DirectDispatchShared::kCalledOff;
      return;
    }
    if (expert_idx == shape.n_experts()) {
      shared.shared_rows[src_rank] = shared_expert_rows(count);
      return;
    }
    target::atomic_add_relaxed_block(&shared.first_row[expert_idx], count);
    if (src_rank < mutate<Fixed, LogicMutant::kAssignedWithoutRanksBefore>(params.my_rank, 0))
      target::atomic_add_relaxed_block(&shared.my_first_row[expert_idx], count);
  }

  // Computes where each expert's rows begin on its owner. Returns false if they do not fit on some rank, or a
  // rank has called the step off: all ranks see the same counts, so all of them skip the step.
  SWITCHYARD_DEVICE bool assign_experts() const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kAssignExperts);
    const bool was_skipped = is_skipped_again();
    bool is_too_much = false;
    for (int owner = target::warp_idx(); owner < shape.n_ranks(); owner += target::num_warps())
      is_too_much |= !fits(owner, assign_experts_of(owner), was_skipped);
    const bool is_skipped = target::sync_block_any(is_too_much);
    if (target::block_idx() == 0) publish_offsets(is_skipped);
    return !is_skipped;
  }
  // A step that is opened again has no rows, and remains skipped if it was: every rank has kept that,
  // whatever its host knows.
  SWITCHYARD_DEVICE bool is_skipped_again() const {
    if (!params.reopens_step) return false;
    return mutate<Fixed, LogicMutant::kSkipForgotten>(
        [&] { return target::ld(DirectCounters{params.ep_counters}.is_skipped()) != 0; },
        [] { return false; });
  }
  // Lays an owner's experts end to end behind its shared expert, and returns how many rows
  // the owner has. Called by a warp.
  SWITCHYARD_DEVICE uint32_t assign_experts_of(int owner) const {
    const int first_expert = owner * shape.n_local_experts();
    const ScanRun run(shape.n_local_experts(), target::lane_idx(), kWarpSize);
    const auto rows_of = [&](int expert_idx) {
      const uint32_t num_arriving = shared.first_row[expert_idx] + num_rows(expert_idx);
      return mutate<Fixed, LogicMutant::kMaskedGroupsPacked>(params.group_layout.taken_by(num_arriving),
                                                             num_arriving);
    };
    uint32_t num_owned = 0;
    SWITCHYARD_ROLLED
    for (int i = run.begin; i < run.end; ++i) num_owned += rows_of(first_expert + i);
    const uint32_t row_end = shared.shared_rows[owner] + warp_inclusive_sum(num_owned);
    uint32_t row = row_end - num_owned;
    SWITCHYARD_ROLLED
    for (int expert_idx = first_expert + run.begin; expert_idx < first_expert + run.end; ++expert_idx) {
      const uint32_t next_row = row + rows_of(expert_idx);
      shared.first_row[expert_idx] = row;
      shared.my_first_row[expert_idx] += row;
      row = next_row;
    }
    return target::shuffle(row_end, kWarpSize - 1);
  }
  // Returns whether the rows fit on the owner; none do on one that has called the step off, nor in a step
  // that was skipped, which is told again, with no rows. Called by a warp.
  SWITCHYARD_DEVICE bool fits(int owner, uint32_t num_rows, bool was_skipped) const {
    if (owner == params.my_rank && target::lane_idx() == 0) shared.num_own_rows = num_rows;
    const bool is_called_off = shared.shared_rows[owner] == DirectDispatchShared::kCalledOff;
    const uint32_t capacity =
        mutate<Fixed, LogicMutant::kCapacityOffByOne>(params.max_rows, params.max_rows + 1);
    if (!was_skipped && !is_called_off &&
        mutate<Fixed, LogicMutant::kCapacityOfOwnRankOnly>(num_rows <= capacity,
                                                           num_rows <= capacity || owner != params.my_rank))
      return true;
    // Of a step that was called off, who did it is said, and not who has no room.
    if (target::block_idx() == 0 && (is_called_off || !has_been_called_off()) && target::lane_idx() == 0)
      record_fault(*params.wait_context.skipped, params.my_rank,
                   is_called_off ? FaultKind::kCalledOff : FaultKind::kOverCapacity,
                   {Phase::kDispatchAsync, owner, -1, params.max_rows}, was_skipped ? 0 : num_rows, 0);
    return false;
  }
  // Called by a warp.
  SWITCHYARD_DEVICE bool has_been_called_off() const {
    bool found = false;
    SWITCHYARD_ROLLED
    for (int rank = target::lane_idx(); rank < shape.n_ranks(); rank += kWarpSize)
      found |= shared.shared_rows[rank] == DirectDispatchShared::kCalledOff;
    return target::ballot(found) != 0;
  }

  SWITCHYARD_DEVICE void publish_offsets(bool is_skipped) const {
    const DirectCounters counters{params.ep_counters};
    const uint32_t* first_row = shared.first_row + params.my_rank * shape.n_local_experts();
    const int first_group = params.shared_expert.num_groups;
    SWITCHYARD_ROLLED
    for (int expert_idx = target::thread_idx(); expert_idx <= shape.n_local_experts();
         expert_idx += target::num_threads()) {
      const uint32_t row = expert_idx < shape.n_local_experts() ? first_row[expert_idx] : shared.num_own_rows;
      target::st(counters.row_offset(first_group + expert_idx), is_skipped ? 0 : static_cast<int32_t>(row));
    }
    if (target::thread_idx() != 0) return;
    if (first_group > 0) target::st(counters.row_offset(0), 0);
    const bool is_kept = mutate<Fixed, LogicMutant::kSkipForgotten>(params.reopens_step, false);
    if (!is_kept) target::st(counters.is_skipped(), static_cast<int32_t>(is_skipped));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
