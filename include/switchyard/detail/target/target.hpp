// Includes the vocabulary of the target that this file is compiled for, and adds the words that are the same
// on both.
#pragma once

#if defined(__CUDACC__)
#include "switchyard/detail/target/cuda.cuh"
#else
#include "switchyard/detail/target/host.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET::target {

SWITCHYARD_DEVICE int lane_idx() { return thread_idx() % kWarpSize; }
SWITCHYARD_DEVICE int warp_idx() { return thread_idx() / kWarpSize; }
SWITCHYARD_DEVICE int num_warps() { return num_threads() / kWarpSize; }

}  // namespace switchyard::inline SWITCHYARD_TARGET::target
