// What the tables of kernels share.
#pragma once

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The target that the including file is compiled for.
#if defined(__CUDACC__)
inline constexpr Target kThisTarget = Target::kCuda;
#else
inline constexpr Target kThisTarget = Target::kHost;
#endif

// The emulator takes any number of blocks; this limit keeps a typing error from taking all memory for stacks.
inline constexpr int kMaxResidentOnHost = 4096;

inline LaunchShape with_shared(LaunchShape shape, uint64_t shared_bytes) {
  shape.shared_bytes = shared_bytes;
  return shape;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
