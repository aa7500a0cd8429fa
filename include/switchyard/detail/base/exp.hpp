// e^x in fp32 with the same bits on every target, which the exponentials of C libraries do not give. Within
// one unit in the last place.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// What would be below the normal numbers is 0; what would be above the largest is infinity; NaN stays NaN.
// Every operation is rounded once, whatever the compiler may contract: those that could be are fma already.
SWITCHYARD_HD inline float exp_f32(float x) {
  constexpr float kLargest = 0x1.62e42ep+6f, kSmallest = -0x1.5d589ep+6f;
  constexpr float kLog2E = 0x1.715476p+0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  // Adding it rounds to a whole number, which is then in the lowest bits.
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
  const float rounded = fmaf(x, kLog2E, kRounder);
  const float exponent = rounded - kRounder;
  const float rest = fmaf(exponent, -kLn2Low, fmaf(exponent, -kLn2High, x));  // at most ln(2) / 2
  // 1 + r + r^2 * p(r), p by interpolation at the Chebyshev nodes of (e^r - 1 - r) / r^2.
  float power = fmaf(0x1.6d113cp-10f, rest, 0x1.120ba2p-7f);
  power = fmaf(power, rest, 0x1.55551ap-5f);
  power = fmaf(power, rest, 0x1.5554dcp-3f);
  power = fmaf(power, rest, 0.5f);
  power = fmaf(power, rest, 1.0f);
  power = fmaf(power, rest, 1.0f);
  // Times 2^exponent.
  const uint32_t scaled = std::bit_cast<uint32_t>(power) + (std::bit_cast<uint32_t>(rounded) << 23);
  if (x != x) return x;
  if (x > kLargest) return std::bit_cast<float>(0x7f800000u);
  return x < kSmallest ? 0.0f : std::bit_cast<float>(scaled);
}

}  // namespace switchyard
