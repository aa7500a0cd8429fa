// A kernel that only records the time: `switchyard run` launches it between its phases.
#pragma once

#include "switchyard/detail/sync/time_stamp_params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_KERNEL void time_stamp_kernel(TimeStampParams params) {
  if (target::thread_idx() == 0) target::st(params.reached_ns, target::now_ns());
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
