// Asks for memory ahead of the launch that reads it, while the GPU's memory has little to do.
#pragma once

#include "switchyard/detail/base/prefetched_memory.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Asks for a block's share of the memory. Called by a warp of each block; nothing waits for what was asked
// for.
SWITCHYARD_DEVICE void prefetch_share(const PrefetchedMemory& memory) {
  constexpr uint64_t kPieceBytes = 16 * 1024;
  const uint64_t stride = kPieceBytes * static_cast<uint64_t>(target::num_blocks());
  uint64_t at = kPieceBytes * static_cast<uint64_t>(target::block_idx()) +
                stride * static_cast<uint64_t>(target::lane_idx());
  for (; at < memory.bytes; at += stride * kWarpSize) {
    const uint64_t left = memory.bytes - at;
    target::prefetch_to_l2(static_cast<const unsigned char*>(memory.begin) + at,
                           static_cast<uint32_t>(left < kPieceBytes ? left : kPieceBytes));
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
