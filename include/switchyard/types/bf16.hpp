// bfloat16 as 16 bits: the upper half of a float, rounded to nearest even. Host and device agree bit for bit.
#pragma once

#include <bit>
#include <cstdint>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

struct bf16 {
  uint16_t bits = 0;
  friend constexpr bool operator==(bf16, bf16) = default;
};

SWITCHYARD_HD constexpr float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// NaN becomes the quiet NaN of the same sign; infinities and signed zeros are kept.
SWITCHYARD_HD constexpr bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return bf16{static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7fc0u)};
  const uint32_t round_to_even = 0x7fffu + (bits >> 16 & 1u);
  return bf16{static_cast<uint16_t>((bits + round_to_even) >> 16)};
}

}  // namespace switchyard
