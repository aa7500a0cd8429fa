// The shapes that the matrix unit gives to warpgroups and to tiles in shared memory, on both targets.
#pragma once

namespace switchyard {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // of a product

// A tile in shared memory is [panel][row][64 columns].
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = kPanelColumns * 2;

}  // namespace switchyard
