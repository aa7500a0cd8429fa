// dispatch_wait, direct protocol: rows and src_info are where they belong when all ranks have signalled.
#pragma once

#include "switchyard/ep/direct/wait_for_step.hpp"
#include "switchyard/ep/mutant.hpp"
#include "switchyard/ep/params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct DirectDispatchWait {
  using Params = DispatchParams<Format>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.counters};

  SWITCHYARD_DEVICE explicit DirectDispatchWait(const Params& params_in) : params(params_in) {}

  // One block is enough: a stream's next launch comes when it has ended.
  SWITCHYARD_DEVICE void run() {
    if (target::block_idx() != 0) return;
    const uint32_t step = 1 + static_cast<uint32_t>(target::ld(counters.num_steps()));
    publish_offsets();
    if (!collect_rows(step)) return;  // a fault: the host resets everything
    // All blocks of this rank have signalled, so none needs the old number any more.
    if (target::thread_idx() == 0 && !is_mutant<Fixed>(LogicMutant::kStepNotCounted))
      target::st(counters.num_steps(), static_cast<int32_t>(step));
  }

  // Known before any row is there.
  SWITCHYARD_DEVICE void publish_offsets() {
    for (int expert_idx = target::thread_idx(); expert_idx <= shape.n_local_experts();
         expert_idx += target::num_threads()) {
      target::st(&params.row_offsets[expert_idx],
                 static_cast<uint32_t>(target::ld(counters.row_offset(expert_idx))));
      if (expert_idx < shape.n_local_experts()) target::st(&params.expert_ids[expert_idx], expert_idx);
    }
  }

  // Waits until the rows of every rank for every expert here have arrived.
  SWITCHYARD_DEVICE bool collect_rows(uint32_t step) {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchWait, TraceName::kCollectRows);
    bool arrived = finds_no_poison(params.fault);
    for (int pair_idx = target::thread_idx(); pair_idx < shape.n_experts();
         pair_idx += target::num_threads()) {
      const int src_rank = pair_idx % shape.n_ranks();
      const int expert_idx = params.my_rank * shape.n_local_experts() + pair_idx / shape.n_ranks();
      StepCell num_rows{};
      if (is_mutant<Fixed>(LogicMutant::kRowsNotAwaited)) continue;
      // acquire: the rank's rows of this expert; pairs with the release in its finish()
      arrived &= wait_for_step(params.fault, Phase::kDispatchWait, src_rank, expert_idx, step,
                               params.recv_counts.of_rank[params.my_rank] + pair_idx, num_rows);
    }
    return sync_block_all_well(arrived);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
