// Waiting for a peer inside a kernel: every such wait has a deadline, notices poison, and names who it waited
// for.
#pragma once

#include "switchyard/detail/sync/fault_channel.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Who waits where for what: all that a fault record says besides what was seen.
struct WaitSite {
  Phase phase;
  int late_rank;
  int expert;
  uint64_t expected;
};

// The same by the numbers that ranks and experts have outside the kernel.
SWITCHYARD_DEVICE WaitSite in_world(const FaultChannel& channel, WaitSite site) {
  if (site.late_rank >= 0) site.late_rank += channel.first_rank;
  if (site.expert >= 0) site.expert += channel.first_expert;
  return site;
}

// Fills in the record, if it is clear.
SWITCHYARD_DEVICE void record_fault(FaultRecord& record, int my_rank, FaultKind kind, const WaitSite& site,
                                    uint64_t seen, uint64_t elapsed_ns) {
  if constexpr (!kChecked) return;
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
    // release: publishes the record; pairs with the host's acquire in ExpertParallel's fault check
    target::st_release_system(&record.state, uint32_t{FaultRecord::kWritten});
  }
}

// Records the fault, if it is this rank's first, and tells all ranks to leave.
SWITCHYARD_DEVICE void raise_fault(const FaultChannel& channel, FaultKind kind, const WaitSite& site,
                                   uint64_t seen, uint64_t elapsed_ns) {
  if constexpr (!kChecked) return;
  record_fault(*channel.record, channel.my_rank, kind, in_world(channel, site), seen, elapsed_ns);
  SWITCHYARD_ROLLED  // code that never runs is in the way of code that does
      for (int rank = 0; rank < channel.n_ranks; ++rank) target::atomic_cas_acq_rel_system(
          channel.poison[rank], 0u, 1u + static_cast<uint32_t>(channel.my_rank));
}

SWITCHYARD_DEVICE bool is_poisoned(const FaultChannel& channel) {
  return kChecked && target::ld_relaxed_system(channel.poison[channel.my_rank]) != 0;
}

// The same asked once per block, by its last thread, which has the least else to do. For
// sync_block_all_well().
SWITCHYARD_DEVICE bool finds_no_poison(const FaultChannel& channel) {
  return target::thread_idx() != target::num_threads() - 1 || !is_poisoned(channel);
}

// A barrier of the block; true if no thread has found anything wrong.
SWITCHYARD_DEVICE bool sync_block_all_well(bool is_well) {
  if constexpr (kChecked) return !target::sync_block_any(!is_well);
  target::sync_block();
  return true;
}

// Waits until `done(load())`. False if a peer has poisoned this rank or time ran out (which it then reports):
// the caller must leave without touching what it waited for. `load` carries the acquire; the value is left in
// `seen`. A wait whose first look is not its last is traced.
template <typename T, typename Load, typename Done>
SWITCHYARD_DEVICE bool wait_for(const FaultChannel& channel, const WaitSite& site, T& seen, Load load,
                                Done done) {
  if (in_world(channel, site).late_rank != channel.my_rank) target::check_may_wait_for_peer();
  if constexpr (!kChecked) return target::wait_until([&] { return done(seen = load()); }, kNoDeadline);
  // What is there already, or very soon, needs neither clock nor poison.
  if (!is_on(channel.trace) && target::wait_until([&] { return done(seen = load()); }, 0)) return true;
  const uint64_t start_ns = target::now_ns();
  const WaitSite named = in_world(channel, site);
  bool arrived = false;
  uint64_t looked_ns = start_ns;
  uint32_t num_looks = 0;
  const bool ended = target::wait_until(
      [&] {
        // Lanes of a warp leave the loop together: only here does each know when it looked last.
        if (is_on(channel.trace)) [[unlikely]] {
          looked_ns = target::now_ns();
          ++num_looks;
        }
        // Both loads are under way before either is looked at: the check for poison adds no time to a poll.
        const bool poisoned = is_poisoned(channel);
        seen = load();
        arrived = done(seen);
        return arrived || poisoned;
      },
      start_ns + channel.timeout_ns);
  if (!ended)
    raise_fault(channel, FaultKind::kTimeout, site, static_cast<uint64_t>(seen), target::now_ns() - start_ns);
  if (num_looks > 1) [[unlikely]]
    record(channel.trace, {start_ns, looked_ns,
                           arrived ? TraceName::kWait
                           : ended ? TraceName::kAbandonedWait
                                   : TraceName::kTimedOutWait,
                           named.phase, named.late_rank, named.expert});
  return arrived;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
