// Waits for a peer inside a kernel: every such wait has a deadline, notices poison, and names the rank that
// it waited for.
#pragma once

#include "switchyard/detail/sync/trace_slice.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/target/wire.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Says who waits where for what: everything in a fault record except what was seen.
struct WaitSite {
  Phase phase;
  int late_rank;
  int expert;
  uint64_t expected;
};

// Translates the rank and the expert to the numbers that they have outside the kernel.
SWITCHYARD_DEVICE WaitSite in_world(const WaitContext& context, WaitSite site) {
  if (site.late_rank >= 0) site.late_rank += context.first_rank;
  if (site.expert >= 0) site.expert += context.first_expert;
  return site;
}

// Writes the record if it is clear: the first fault of a rank is kept.
SWITCHYARD_DEVICE void record_fault(FaultRecord& record, int my_rank, FaultKind kind, const WaitSite& site,
                                    uint64_t seen, uint64_t elapsed_ns) {
  if constexpr (!kChecked) return;
  // acq_rel MM-26: one thread claims the record; pairs with itself
  if (target::atomic_cas_acq_rel_system(&record.state, uint32_t{FaultRecord::kClear},
                                        uint32_t{FaultRecord::kClaimed})) {
    target::st(&record.kind, kind);
    target::st(&record.phase, site.phase);
    target::st(&record.waiting_rank, my_rank);
    target::st(&record.late_rank, site.late_rank);
    target::st(&record.expert, site.expert);
    target::st(&record.expected, site.expected);
    target::st(&record.seen, seen);
    target::st(&record.elapsed_ns, elapsed_ns);
    // release MM-07: publishes the record; pairs with the host's acquire in ExpertParallel's fault check
    target::st_release_system(&record.state, uint32_t{FaultRecord::kWritten});
  }
}

// Poisons a rank. The rank keeps the first that poisoned it, or, if it is reached over the wire, the last.
SWITCHYARD_DEVICE void poison(const WaitContext& context, int rank) {
  const uint64_t poisoner = 1 + static_cast<uint64_t>(context.my_rank);
  uint64_t* cell = target::ld(context.poison_of_rank + rank);
  if (cell != nullptr)
    // acq_rel MM-27: the first rank to poison another stays its reason; pairs with itself
    target::atomic_cas_acq_rel_system(cell, uint64_t{0}, poisoner);
  else
    target::wire_signal(context.wire, rank, context.my_poison, poisoner);
}

// Records the fault, if it is this rank's first, and poisons all ranks.
SWITCHYARD_DEVICE void raise_fault(const WaitContext& context, FaultKind kind, const WaitSite& site,
                                   uint64_t seen, uint64_t elapsed_ns) {
  if constexpr (!kChecked) return;
  record_fault(*context.record, context.my_rank, kind, in_world(context, site), seen, elapsed_ns);
  SWITCHYARD_ROLLED  // unrolled, this rarely executed code would fill the instruction cache
      for (int rank = 0; rank < context.n_ranks; ++rank) poison(context, rank);
}

SWITCHYARD_DEVICE bool is_poisoned(const WaitContext& context) {
  return kChecked && target::ld_relaxed_system(context.my_poison) != 0;
}

// Returns what a thread passes to sync_block_all(): the block's last thread, which has the least to do, polls
// for poison; all others say true.
SWITCHYARD_DEVICE bool is_unpoisoned(const WaitContext& context) {
  return target::thread_idx() != target::num_threads() - 1 || !is_poisoned(context);
}

// The same for a kernel with a logic mutant that does not poll.
template <typename Fixed, LogicMutant kDoesNotAsk>
SWITCHYARD_DEVICE bool is_unpoisoned(const WaitContext& context) {
  return is_unpoisoned(context) || is_mutant<Fixed>(kDoesNotAsk);
}

// A barrier of the block, which returns whether every thread has passed true.
SWITCHYARD_DEVICE bool sync_block_all(bool is_healthy) {
  if constexpr (kChecked) return !target::sync_block_any(!is_healthy);
  target::sync_block();
  return true;
}

// Waits until `done(load())`. Returns false if a peer has poisoned this rank, or if the deadline has passed,
// which it then reports as a fault: the caller must return without accessing what it waited for. `load` has
// the acquire; `seen` is the value that it last returned. A wait that its first poll does not end is
// traced. `since_ns`: when the wait began, if that was before (sync/rank_waits.hpp), or 0.
template <typename T, typename Load, typename Done>
SWITCHYARD_DEVICE bool wait_for(const WaitContext& context, const WaitSite& site, T& seen, Load load,
                                Done done, uint64_t since_ns = 0) {
  if (in_world(context, site).late_rank != context.my_rank) target::check_may_wait_for_peer();
  if constexpr (!kChecked) return target::wait_until([&] { return done(seen = load()); }, kNoDeadline);
  // A value that has arrived already, or arrives very soon, needs neither clock nor poison.
  if (!is_on(context.trace) && target::wait_until([&] { return done(seen = load()); }, 0)) return true;
  const uint64_t start_ns = since_ns != 0 ? since_ns : target::now_ns();
  const WaitSite named = in_world(context, site);
  bool arrived = false;
  uint64_t looked_ns = start_ns;
  uint32_t num_looks = 0;
  const bool ended = target::wait_until(
      [&] {
        // The lanes of a warp leave the loop together, so each records here when it polled last.
        if (is_on(context.trace)) [[unlikely]] {
          looked_ns = target::now_ns();
          ++num_looks;
        }
        // Both loads are in flight before either is used: the check for poison adds no latency to a poll.
        const bool poisoned = is_poisoned(context);
        seen = load();
        arrived = done(seen);
        return arrived || poisoned;
      },
      start_ns + context.timeout_ns);
  if (!ended)
    raise_fault(context, FaultKind::kTimeout, site, static_cast<uint64_t>(seen), target::now_ns() - start_ns);
  if (num_looks > (ended ? 1u : 0u)) [[unlikely]]
    record(context.trace, {start_ns, looked_ns,
                           arrived ? TraceName::kWait
                           : ended ? TraceName::kAbandonedWait
                                   : TraceName::kTimedOutWait,
                           named.phase, named.late_rank, named.expert});
  return arrived;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
