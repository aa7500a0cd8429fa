// e8m0: a scale. Code c is 2^(c - 127), from 2^-127 to 2^127; 0xff is NaN. There is no zero and no sign.
#pragma once

#include <bit>
#include <cstdint>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

struct e8m0 {
  static constexpr uint32_t kNanCode = 0xff;
  static constexpr uint32_t kMaxCode = 0xfe;

  uint8_t bits = 0;
  friend constexpr bool operator==(e8m0, e8m0) = default;
};

// Exact: code 0 is a subnormal float.
SWITCHYARD_HD constexpr float to_float(e8m0 scale) {
  if (scale.bits == e8m0::kNanCode) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(scale.bits == 0 ? 0x00400000u : static_cast<uint32_t>(scale.bits) << 23);
}

// The largest power of two that is not above |value|. What lies below 2^-127, zero included, becomes 2^-127;
// infinity becomes 2^127; NaN becomes NaN.
SWITCHYARD_HD constexpr e8m0 to_e8m0_round_down(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return e8m0{e8m0::kNanCode};
  const uint32_t exponent = magnitude >> 23;
  return e8m0{static_cast<uint8_t>(exponent < e8m0::kMaxCode ? exponent : e8m0::kMaxCode)};
}

// The smallest power of two that is not below |value|. What lies above 2^127, infinity included, becomes
// 2^127; NaN becomes NaN.
SWITCHYARD_HD constexpr e8m0 to_e8m0_round_up(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return e8m0{e8m0::kNanCode};
  // Below the normal floats a code's own value is half the next power: 2^-127 is 0x00400000.
  if (magnitude <= 0x00400000u) return e8m0{0};
  const uint32_t exponent = (magnitude + 0x7fffffu) >> 23;
  return e8m0{static_cast<uint8_t>(exponent < e8m0::kMaxCode ? exponent : e8m0::kMaxCode)};
}

// The scale of a block by the OCP Microscaling specification: 2^(floor(log2(amax)) - emax), where emax is the
// exponent of the largest number of the elements, and no less than 2^-127. An amax that is infinite or NaN
// has no scale: NaN.
template <typename Element>
SWITCHYARD_HD constexpr e8m0 mx_scale(float amax) {
  const uint32_t exponent = std::bit_cast<uint32_t>(amax) >> 23 & 0xffu;
  constexpr uint32_t kMaxExponent = static_cast<uint32_t>(Element::kMaxExponent);
  if (exponent == 0xff) return e8m0{e8m0::kNanCode};
  return e8m0{static_cast<uint8_t>(exponent > kMaxExponent ? exponent - kMaxExponent : 0)};
}

// 1 / scale, exact, for scales up to 2^126 (those of mx_scale are); NaN for NaN.
SWITCHYARD_HD constexpr float reciprocal(e8m0 scale) {
  const uint32_t exponent = 254u - scale.bits;
  return std::bit_cast<float>(scale.bits == e8m0::kNanCode ? 0x7fc00000u : exponent << 23);
}

}  // namespace switchyard
