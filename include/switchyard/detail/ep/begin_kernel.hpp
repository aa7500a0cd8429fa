// How expert-parallel kernels share a GPU with the launches around them.
#pragma once

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// From here on the next launch of the stream may become resident, if it is a dependent one. A block calls
// this after its last wait for a peer, never before: the successor takes room on the multiprocessors, and the
// peer's kernel may need that room before it can send what this one waits for. Without the call the successor
// becomes resident when the blocks end.
SWITCHYARD_DEVICE void admit_successor() { target::grid_dependency_launch(); }

// A dependent launch may be resident before its predecessor in the stream has ended. It waits here for what
// the predecessor wrote.
template <FixedShape Fixed>
SWITCHYARD_DEVICE void begin_kernel() {
  target::grid_dependency_wait();
  mutate<Fixed, LogicMutant::kSuccessorAdmittedAtOnce>([] {}, [] { admit_successor(); });
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
