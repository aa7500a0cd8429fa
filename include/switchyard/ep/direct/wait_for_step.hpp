// Waiting for a cell to carry the number of a step.
#pragma once

#include "switchyard/ep/direct/layout.hpp"
#include "switchyard/sync/wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Waits until a peer has written `step` into the cell, and takes the value beside it. Acquires what the peer
// released with it. False: as wait_for().
SWITCHYARD_DEVICE bool wait_for_step(const FaultChannel& channel, Phase phase, int late_rank, int expert_idx,
                                     uint32_t step, const uint64_t* cell, uint32_t& value SWITCHYARD_WHERE) {
  uint32_t seen_step = 0;
  return wait_for(
      channel, {phase, late_rank, expert_idx, step}, seen_step,
      [&] {
        const StepCell seen = StepCell::unpack(target::ld_acquire_system(cell SWITCHYARD_PASS_WHERE));
        value = seen.value;
        return seen.step;
      },
      [&](uint32_t seen) { return seen == step; });
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
