// RowReadiness: for kernels of your own that start before dispatch has ended. A kernel that is launched
// between dispatch_async and dispatch_wait on a rank's stream, such as a grouped matmul, may work on an
// expert as soon as the rows of all ranks for it have arrived. ExpertParallel::row_readiness() returns what
// the kernel needs. dispatch_wait must follow on the same stream.
#pragma once

#include "switchyard/detail/ep/direct/step_signal.hpp"

namespace switchyard {

// Pointers into the rank's memory, passed to a kernel by value.
//
// Ownership: the ExpertParallel owns what the pointers point to. They stay valid until it is destroyed or
// reset with fewer ranks, so a graph may hold them.
// Stream: the kernel runs on the rank's stream, behind dispatch_async. It must not admit a dependent launch
// before its last wait, and may have as many blocks as were passed to row_readiness().
// Threads: any threads of any blocks of the kernel may wait, for any experts, at once. Each thread that reads
// rows waits itself, or meets at a barrier with one that has.
// Errors: a wait ends after the timeout_ns of the ExpertParallel at the latest. If it ends without the rows,
// it returns false, and ExpertParallel::synchronize() returns an error that names the rank that was late; the
// kernel must then end without reading rows, and every further call fails until reset().
struct RowReadiness {
  const uint64_t* cells;       // [n_local_experts][n_ranks]: what wait_for_expert_rows() waits for
  const int32_t* num_steps;    // how many dispatches have ended; the current step has the next number
  const int32_t* row_offsets;  // [n_local_experts + 1]; this rank's dispatch_async has written them
  int32_t n_ranks;
  int32_t n_local_experts;
  WaitContext wait_context;  // takes experts by their local index
};

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

// Waits until one rank has written its rows of this expert, and acquires them for the calling thread. Other
// threads of the block may read the rows after a barrier. Returns false if a deadline has passed or another
// rank has failed: the kernel must then return without reading the rows.
SWITCHYARD_DEVICE bool wait_for_rows_of_rank(const RowReadiness& readiness, int local_expert_idx,
                                             int src_rank) {
  const uint32_t step = 1 + static_cast<uint32_t>(target::ld(readiness.num_steps));
  const AwaitedStep<StepCell> signal{readiness.wait_context,
                                     readiness.cells + local_expert_idx * readiness.n_ranks + src_rank};
  StepCell num_rows{};
  // acquire MM-10: the rank's rows of this expert; pairs with the release in its dispatch_async, finish()
  return signal.wait_until(step, Phase::kDispatchWait, src_rank, local_expert_idx, num_rows);
}

// The same for the rows of every rank.
SWITCHYARD_DEVICE bool wait_for_expert_rows(const RowReadiness& readiness, int local_expert_idx) {
  bool arrived = true;
  for (int rank = 0; rank < readiness.n_ranks; ++rank)
    arrived &= wait_for_rows_of_rank(readiness, local_expert_idx, rank);
  return arrived;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
