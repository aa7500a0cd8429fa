// Starting early: a kernel between dispatch_async and dispatch_wait on a rank's stream (a grouped matmul,
// say) may work on an expert as soon as the rows of all ranks for it are there.
// ExpertParallel::row_readiness() gives what it needs; dispatch_wait must follow all the same.
#pragma once

#include "switchyard/detail/ep/direct/wait_for_step.hpp"

namespace switchyard {

struct RowReadiness {
  const uint64_t* cells;       // [n_local_experts][n_ranks], a StepCell each
  const int32_t* num_steps;    // whose dispatch has ended; the one under way is the next
  const int32_t* row_offsets;  // [n_local_experts + 1], known before any row is there
  int32_t n_ranks;
  FaultChannel fault;  // takes experts by their local index
};

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

// Waits until every rank has written its rows of this expert, and acquires them for the calling thread.
// False: as wait_for().
SWITCHYARD_DEVICE bool wait_for_expert_rows(const RowReadiness& readiness, int local_expert_idx) {
  const uint32_t step = 1 + static_cast<uint32_t>(target::ld(readiness.num_steps));
  bool arrived = true;
  for (int rank = 0; rank < readiness.n_ranks; ++rank) {
    StepCell num_rows{};
    // acquire: the rank's rows of this expert; pairs with the release in its dispatch_async, finish()
    arrived &= wait_for_step(readiness.fault, Phase::kDispatchWait, rank, local_expert_idx, step,
                             readiness.cells + local_expert_idx * readiness.n_ranks + rank, num_rows);
  }
  return arrived;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
