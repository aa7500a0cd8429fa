// Experts that start early, for the target this file is compiled for: a kernel between dispatch_async and
// dispatch_wait that works on each expert as soon as its rows are there.
#pragma once

#include "switchyard/detail/target/target.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/row_readiness.hpp"
#include "switchyard/world.hpp"

namespace switchyard::testing_support::inline SWITCHYARD_TARGET {

struct EarlyExperts {
  RowReadiness readiness;
  const bf16* rows;
  bf16* expert_outputs;
  int32_t n_local_experts;
  int32_t hidden;
};

// Every block has experts of its own; rows become their outputs.
SWITCHYARD_KERNEL void early_experts_kernel(EarlyExperts experts) {
  for (int expert_idx = target::block_idx(); expert_idx < experts.n_local_experts;
       expert_idx += target::num_blocks()) {
    const bool arrived = target::thread_idx() != 0 || wait_for_expert_rows(experts.readiness, expert_idx);
    if (target::sync_block_any(!arrived)) return;
    const int64_t first = target::ld(&experts.readiness.row_offsets[expert_idx]);
    const int64_t num_rows = target::ld(&experts.readiness.row_offsets[expert_idx + 1]) - first;
    target::copy_row(experts.expert_outputs + first * experts.hidden, experts.rows + first * experts.hidden,
                     static_cast<uint64_t>(num_rows * experts.hidden) * sizeof(bf16), target::thread_idx(),
                     target::num_threads());
  }
}

// On the rank's stream.
inline Status launch_early_experts(World& world, ExpertParallel& ep, int rank, const LaunchShape& shape) {
  const Result<RowReadiness> readiness = ep.row_readiness(rank, static_cast<int>(shape.num_blocks));
  if (!readiness.ok()) return readiness.status();
  const Result<RowBuffers> rows = ep.row_buffers(rank);
  if (!rows.ok()) return rows.status();
  return target::launch("early_experts", early_experts_kernel, shape, world.rank(rank).stream(),
                        EarlyExperts{readiness.value(), rows.value().rows, rows.value().expert_outputs,
                                     ep.n_local_experts(), ep.config().hidden});
}

}  // namespace switchyard::testing_support::inline SWITCHYARD_TARGET
