// Signals: how a block tells a peer, or another block, that something is complete, and how that one waits.
// All that kernels write for other ranks is published through them; ep/direct/step_signal.hpp has the waits
// for cells that carry the number of their step.
#pragma once

#include "switchyard/detail/sync/wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A cell in a peer's memory.
struct PeerSignal {
  Scope scope;  // wide enough to reach the peer
  uint64_t* cell;

  // Returns at once. A peer that sees the value also sees everything that came before in this thread, and
  // everything that this thread had acquired, also through barriers of its block.
  SWITCHYARD_DEVICE void publish(uint64_t value SWITCHYARD_WHERE) const {
    target::st_release(scope, cell, value SWITCHYARD_PASS_WHERE);
  }
};

// The same cell, seen by the rank whose memory it is in.
struct AwaitedSignal {
  const WaitContext& context;
  const uint64_t* cell;

  // Waits until `done(value)`. Returns true if what the peer did before it published `value` is visible to
  // this thread, and false where wait_for() does.
  template <typename Done>
  SWITCHYARD_DEVICE bool wait_until(const WaitSite& site, uint64_t& value, Done done,
                                    uint64_t since_ns = 0 SWITCHYARD_WHERE) const {
    return wait_for(
        context, site, value, [&] { return target::ld_acquire_system(cell SWITCHYARD_PASS_WHERE); }, done,
        since_ns);
  }
};

// A counter that blocks of one rank add to.
struct DeviceSignal {
  int32_t* counter;

  // Publishes what came before in this thread, and what its block did before a barrier, to the blocks of this
  // rank.
  SWITCHYARD_DEVICE void add(int32_t value SWITCHYARD_WHERE) const {
    target::atomic_add_release_device(counter, value SWITCHYARD_PASS_WHERE);
  }

  // Waits until `done(sum)`. Returns true if what was published with each part of the sum is visible to this
  // thread, and false where wait_for() does.
  template <typename Done>
  SWITCHYARD_DEVICE bool wait_until(const WaitContext& context, const WaitSite& site, int32_t& sum,
                                    Done done SWITCHYARD_WHERE) const {
    return wait_for(
        context, site, sum, [&] { return target::ld_acquire_device(counter SWITCHYARD_PASS_WHERE); }, done);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
