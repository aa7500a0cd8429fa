// How long a kernel waits for each rank, where the caller asks for it.
#pragma once

#include "switchyard/detail/sync/wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Adds how long block 0 waits for each other rank to step.rank_wait_ns[rank], and returns when that began.
// Where nobody asks, and in all other blocks, it returns 0 at once.
//
// The first `num_threads` threads of the block take a rank each, and look at the clock when `has_come(rank)`
// is true: within the wait, since the lanes of a warp leave it together. (If there are more ranks than
// threads, a thread sees its second rank no sooner than its first.) Nothing is visible for that: the same
// signals are then awaited by wait_for(), which is told when the wait began. So a rank that does not come,
// or poison, ends this wait, adds nothing, and is a fault there, at the deadline that it would have had.
template <typename Step, typename HasCome>
SWITCHYARD_DEVICE uint64_t time_ranks(const Step& step, Phase phase, int n_ranks, int num_threads,
                                      HasCome has_come) {
  if (step.rank_wait_ns == nullptr || target::block_idx() != 0) [[likely]]
    return 0;
  const WaitContext& context = step.wait_context;
  const uint64_t begin_ns = target::now_ns();
  SWITCHYARD_ROLLED
  for (int rank = target::thread_idx(); target::thread_idx() < num_threads && rank < n_ranks;
       rank += num_threads) {
    if (rank == step.my_rank) continue;
    uint64_t arrived_ns = 0;
    target::wait_until(
        [&] {
          const bool poisoned = is_poisoned(context);
          if (!has_come(rank)) return poisoned;
          arrived_ns = target::now_ns();
          return true;
        },
        begin_ns + context.timeout_ns);
    if (arrived_ns == 0) continue;
    target::st(step.rank_wait_ns + rank, target::ld(step.rank_wait_ns + rank) + (arrived_ns - begin_ns));
    if (is_on(context.trace)) [[unlikely]]
      record(context.trace, {begin_ns, arrived_ns, TraceName::kWait, phase, rank, -1});
  }
  return begin_ns;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
