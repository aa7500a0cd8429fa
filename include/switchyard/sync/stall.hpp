// Kernels that only take or tell the time: what `switchyard run --stall` and the simulations put in front of
// a rank's launch, and what `switchyard run` puts between its phases.
#pragma once

#include "switchyard/sync/fault.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_KERNEL void stall_kernel(StallParams params) {
  if (target::thread_idx() != 0) return;
  target::wait_until([] { return false; }, target::now_ns() + params.duration_ns);
}

SWITCHYARD_KERNEL void time_stamp_kernel(TimeStampParams params) {
  if (target::thread_idx() == 0) target::st(params.reached_ns, target::now_ns());
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
