// Waiting for a cell to carry the number of a step.
#pragma once

#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/sync/wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Waits until a peer has written `step` into the cell, and takes what is beside it. Acquires what the peer
// released with it. False: as wait_for().
template <typename Cell>
SWITCHYARD_DEVICE bool wait_for_step(const FaultChannel& channel, Phase phase, int late_rank, int expert_idx,
                                     uint32_t step, const uint64_t* address, Cell& cell SWITCHYARD_WHERE) {
  const uint32_t expected = Cell::step_bits(step);
  uint32_t seen_step = 0;
  return wait_for(
      channel, {phase, late_rank, expert_idx, expected}, seen_step,
      [&] {
        cell = Cell::unpack(target::ld_acquire_system(address SWITCHYARD_PASS_WHERE));
        return cell.step;
      },
      [&](uint32_t seen) { return seen == expected; });
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
