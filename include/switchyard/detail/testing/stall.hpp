// A kernel that only takes time: what `switchyard run --stall` and the simulations put in front of a rank's
// launch.
#pragma once

#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/stall_params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_KERNEL void stall_kernel(StallParams params) {
  if (target::thread_idx() != 0) return;
  target::wait_until([] { return false; }, target::now_ns() + params.duration_ns);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
