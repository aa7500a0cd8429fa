// How the roles of a persistent block hand stages of shared memory to each other.
#pragma once

#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Cycles through the stages. The parity is that of the phase in which a barrier of the current stage
// completes.
template <int kNumStages>
class StageCursor {
 public:
  SWITCHYARD_DEVICE uint32_t stage() const { return kIsPowerOfTwo ? count_ % kNumStages : count_; }
  SWITCHYARD_DEVICE uint32_t parity() const { return kIsPowerOfTwo ? count_ / kNumStages % 2 : parity_; }
  SWITCHYARD_DEVICE void advance() {
    ++count_;
    if (kIsPowerOfTwo || count_ != kNumStages) return;
    count_ = 0;
    parity_ ^= 1;
  }

 private:
  // One counter, in one register, then gives both the stage and the parity.
  static constexpr bool kIsPowerOfTwo = (kNumStages & (kNumStages - 1)) == 0;

  uint32_t count_ = 0;
  uint32_t parity_ = 0;
};

// The wait has no deadline: only loads and the roles of the block complete the phase, or, in a cluster, those
// of the other block, which is resident as well.
SWITCHYARD_DEVICE void wait_for_phase(target::TransferBarrier& barrier, uint32_t parity) {
  target::wait_until([&] { return barrier.done(parity); }, kNoDeadline);
}

// The same for a whole warp, one lane of which may then complete the next phase: a lane that had not polled
// by then would miss the phase and wait forever.
SWITCHYARD_DEVICE void wait_together(target::TransferBarrier& barrier, uint32_t parity) {
  wait_for_phase(barrier, parity);
  target::sync_warp();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
