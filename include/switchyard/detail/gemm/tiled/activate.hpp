// Gate and up become one number: the arithmetic of the gated epilogues.
#pragma once

#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Within a few units in the last place of fp32. A gate or an up that is NaN makes the result NaN.
SWITCHYARD_DEVICE float activate(const ActivationNumbers& numbers, float gate, float up) {
  constexpr float kMinusLog2E = -1.4426950408889634f;
  constexpr float kLargestSquare = 1e30f;  // so that no square is infinite, and 0 times it is 0
  const float x = target::min_or_nan(gate, numbers.limit);
  const float y = target::max_or_nan(target::min_or_nan(up, numbers.limit), -numbers.limit);
  const float square = target::min_or_nan(x * x, kLargestSquare);
  const float argument = x * target::multiply_add(numbers.cubic, square, numbers.linear);
  const float sigmoid = target::reciprocal_approx(1.0f + target::exp2_approx(argument * kMinusLog2E));
  return x * sigmoid * (y + numbers.up_offset);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
