// How every expert-parallel kernel begins.
#pragma once

#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A dependent launch is on its multiprocessors before its predecessor has ended, and waits here for what that
// wrote. Only then may its own successor come: two launches of a stream at once, never three, or the ranks
// that share a GPU would wait for each other's room.
SWITCHYARD_DEVICE void begin_kernel() {
  target::grid_dependency_wait();
  target::grid_dependency_launch();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
