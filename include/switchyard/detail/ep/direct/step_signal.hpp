// Signals that carry the number of their step.
#pragma once

#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/sync/signal.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Cell is what the peer packs beside the number: a StepCell or a CountCell.
template <typename Cell>
struct AwaitedStep {
  const WaitContext& context;
  const uint64_t* address;

  // Waits until the cell carries `step`, and takes what is beside it. Returns true if what the peer did
  // before it published the cell is visible to this thread, and false where wait_for() does.
  SWITCHYARD_DEVICE bool wait_until(uint32_t step, Phase phase, int late_rank, int expert_idx, Cell& cell,
                                    uint64_t since_ns = 0 SWITCHYARD_WHERE) const {
    const uint32_t expected = Cell::step_bits(step);
    uint32_t seen_step = 0;
    return wait_for(
        context, {phase, late_rank, expert_idx, expected}, seen_step,
        [&] {
          take(cell SWITCHYARD_PASS_WHERE);
          return cell.step;
        },
        [&](uint32_t seen) { return seen == expected; }, since_ns);
  }

  // Whether the cell carries `step`, for time_ranks(): nothing that the peer did is visible for that.
  SWITCHYARD_DEVICE bool has_come(uint32_t step SWITCHYARD_WHERE) const {
    return Cell::unpack(target::ld_relaxed_system(address SWITCHYARD_PASS_WHERE)).step ==
           Cell::step_bits(step);
  }

  // Takes the cell's value, whatever its step.
  SWITCHYARD_DEVICE void take(Cell& cell SWITCHYARD_WHERE) const {
    cell = Cell::unpack(target::ld_acquire_system(address SWITCHYARD_PASS_WHERE));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
