// How the roles of a persistent block hand stages of shared memory to each other.
#pragma once

#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Goes round the stages; the parity is that of the phase in which a barrier of the stage completes.
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
  // One counter says it all then, in one register.
  static constexpr bool kIsPowerOfTwo = (kNumStages & (kNumStages - 1)) == 0;

  uint32_t count_ = 0;
  uint32_t parity_ = 0;
};

// Nothing but the block's own roles and loads is waited for: no deadline.
SWITCHYARD_DEVICE void wait_for_phase(target::TransferBarrier& barrier, uint32_t parity) {
  target::wait_until([&] { return barrier.done(parity); }, kNoDeadline);
}

// The same by a whole warp, one lane of which then does what lets the phase after it end: a lane that has not
// looked by then would wait for a parity that has come and gone.
SWITCHYARD_DEVICE void wait_together(target::TransferBarrier& barrier, uint32_t parity) {
  wait_for_phase(barrier, parity);
  target::sync_warp();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
