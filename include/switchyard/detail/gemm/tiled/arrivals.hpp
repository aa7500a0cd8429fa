// When the rows of a group may be read: a matmul may start while some are still on their way.
#pragma once

#include <concepts>

#include "switchyard/detail/gemm/tiled/kernel_params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// kAwaits: whether rows may still be on their way when the kernel starts. wait(), called by all lanes of a
// warp, waits for a group's rows and acquires them for each lane. It returns the same to all of them. False:
// the rows will not come, and the kernel must end without reading them.
template <typename T>
concept MatmulArrivals = requires(const T& arrivals, uint32_t group_idx) {
  { T::kAwaits } -> std::convertible_to<bool>;
  { arrivals.wait(group_idx) } -> std::same_as<bool>;
};

// All rows were there before the launch.
struct CompleteRows {
  static constexpr bool kAwaits = false;
  SWITCHYARD_DEVICE bool wait(uint32_t) const { return true; }
};
static_assert(MatmulArrivals<CompleteRows>);

// Rows that arrive while the kernel runs have scales that arrive with them. These are read past the L1, which
// may hold the line from when it was read for rows beside them.
template <MatmulArrivals Arrivals>
SWITCHYARD_DEVICE uint32_t load_row_scale(const uint32_t* word) {
  if constexpr (Arrivals::kAwaits) return target::ld_relaxed_device(word);
  return target::ld(word);
}

template <MatmulArrivals Arrivals>
struct EarlyMatmulParams {
  MatmulParams matmul;
  Arrivals arrivals;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
