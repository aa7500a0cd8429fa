// dispatch_wait, direct protocol: rows and src_info are in place when all ranks have signalled. So are
// scales, unless their tensor interleaves rows and tokens are many: then all blocks fetch them and store them
// there, in whole lines of memory.
#pragma once

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/direct/staged_scales.hpp"
#include "switchyard/detail/ep/direct/step_signal.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/sync/rank_waits.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct DirectDispatchWait {
  using Params = DispatchParams<DirectDispatchPart, Format>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.ep_counters};

  SWITCHYARD_DEVICE explicit DirectDispatchWait(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    // One block is enough, unless there are scales to store: the stream's next launch begins when it has
    // ended.
    if (!fetches_scales() && target::block_idx() != 0) return;
    const uint32_t step = next_step();
    if (target::block_idx() == 0) publish_offsets();
    if (!collect_rows(step)) return;  // a fault: the host resets everything
    admit_successor();
    if (target::block_idx() == 0) publish_counts();
    if constexpr (InterleavedTokenFormat<Format>) {
      if (fetches_scales()) {
        store_scales();
        return count_step(step);
      }
    }
    // All blocks of this rank have signalled, so none needs the old number any more.
    if (target::thread_idx() == 0)
      target::st(counters.num_steps(),
                 static_cast<int32_t>(mutate<Fixed, LogicMutant::kStepNotCounted>(step, step - 1)));
  }

  SWITCHYARD_DEVICE bool fetches_scales() const {
    return InterleavedTokenFormat<Format> && !sends_scales<Fixed>(params);
  }

  SWITCHYARD_DEVICE uint32_t next_step() const {
    return 1 + static_cast<uint32_t>(target::ld(counters.num_steps()));
  }

  SWITCHYARD_DEVICE void store_scales() const {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchWait, TraceName::kStoreScales);
    std::byte* memory = params.recv_bufs.mine;
    const Format format = params.format.with_output(memory, memory + params.scales_offset);
    const int num_groups = shape.n_local_experts() + params.shared_expert.num_groups;
    const uint32_t num_rows = static_cast<uint32_t>(target::ld(counters.row_offset(num_groups)));
    const StagedScales<Fixed> staged{
        params,
        params,
        token_scales_layout(shape, format),
        static_cast<uint32_t>(shape.n_ranks()),
        mutate<Fixed, LogicMutant::kLastScaleBandForgotten>(num_rows, num_rows - num_rows % ScaleBand::kRows),
        {params.group_layout.capacity, params.shared_expert, params.recv_counts.mine, shape.n_ranks()}};
    // The stages are free: all copies out of them have completed.
    std::byte* stage_memory = target::shared_storage<DirectDispatchShared>().stage_memory();
    StoreScales<Fixed, Format>{format, staged, stage_memory, DirectDispatchShared::stage_memory_bytes()}
        .run();
  }

  // The last block to read the old number of the step writes the new one.
  SWITCHYARD_DEVICE void count_step(uint32_t step) const {
    target::sync_block();
    if (target::thread_idx() != 0) return;
    // acq_rel MM-15: every block's read of the number comes before the last block's write; pairs with itself
    if (target::atomic_add_acq_rel_device(counters.blocks_waited(), 1) !=
        mutate<Fixed, LogicMutant::kStepCountedByFirstBlock>(target::num_blocks() - 1, 0))
      return;
    target::st(counters.num_steps(), static_cast<int32_t>(step));
    target::st_relaxed_device(counters.blocks_waited(), 0);
  }

  // The offsets are known before any row has arrived.
  SWITCHYARD_DEVICE void publish_offsets() {
    const int num_groups = shape.n_local_experts() + params.shared_expert.num_groups;
    for (int group_idx = target::thread_idx(); group_idx <= num_groups; group_idx += target::num_threads()) {
      target::st(&params.row_offsets[group_idx],
                 static_cast<uint32_t>(target::ld(counters.row_offset(group_idx))));
      if (group_idx == num_groups) continue;
      target::st(&params.expert_ids[group_idx], group_idx);
      if constexpr (ExpertTokenFormat<Format>)
        params.format.publish_expert(group_idx, target::ld(counters.row_offset(group_idx)));
    }
  }

  // Every rank has told how many rows it sends to each expert here. In a skipped step none of them moves.
  SWITCHYARD_DEVICE void publish_counts() const {
    if (params.row_counts == nullptr) return;
    const bool is_skipped = target::ld(counters.is_skipped()) != 0;
    const int first_group = params.shared_expert.num_groups;
    for (int group_idx = target::thread_idx(); group_idx < first_group + shape.n_local_experts();
         group_idx += target::num_threads()) {
      uint32_t num_rows = 0;
      if (group_idx < first_group) num_rows = static_cast<uint32_t>(params.shared_expert.num_tokens);
      const int rank_end = mutate<Fixed, LogicMutant::kRowCountOfOneRank>(shape.n_ranks(), 1);
      for (int rank = 0; group_idx >= first_group && rank < rank_end; ++rank)
        num_rows += rows_from(group_idx - first_group, rank);
      target::st(&params.row_counts[group_idx], is_skipped ? 0 : num_rows);
    }
  }
  SWITCHYARD_DEVICE uint32_t rows_from(int local_expert, int src_rank) const {
    const DispatchCountLayout ready{shape.n_experts(), shape.n_ranks()};
    return StepCell::unpack(target::ld(ready.cell(params.recv_counts.mine, local_expert, src_rank))).value;
  }

  // Waits until the rows of every rank for every expert here have arrived. Only the waits check for poison:
  // rows that have all arrived are complete, whatever broke since.
  SWITCHYARD_DEVICE bool collect_rows(uint32_t step) {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchWait, TraceName::kCollectRows);
    // One block of a rank signals for all experts at once, so the first expert's signal tells when.
    const uint64_t since_ns =
        time_ranks(params, Phase::kDispatchWait, shape.n_ranks(), target::num_threads(), [&](int src_rank) {
          return AwaitedStep<StepCell>{params.wait_context, params.recv_counts.mine + src_rank}.has_come(
              step);
        });
    bool arrived = true;
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts();
         pair_idx += target::num_threads()) {
      const int src_rank = pair_idx % shape.n_ranks();
      const int expert_idx = params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
      const AwaitedStep<StepCell> signal{params.wait_context, params.recv_counts.mine + pair_idx};
      StepCell num_rows{};
      arrived &= mutate<Fixed, LogicMutant::kRowsNotAwaited>(
          [&] {
            // acquire MM-10: the rank's rows of this expert; pairs with the release in its finish()
            return signal.wait_until(step, Phase::kDispatchWait, src_rank, expert_idx, num_rows, since_ns);
          },
          [] { return true; });
    }
    return sync_block_all(arrived);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
