// Rounding up, and size arithmetic that knows when it no longer fits 64 bits.
#pragma once

#include "switchyard/detail/base/macros.hpp"
#include "switchyard/types/checked_size.hpp"

namespace switchyard {

template <typename T>
SWITCHYARD_HD constexpr T align_up(T value, T alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

template <typename T>
SWITCHYARD_HD constexpr T ceil_div(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace switchyard
