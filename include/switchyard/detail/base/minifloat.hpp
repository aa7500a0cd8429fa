// Floating-point numbers of 8 bits and fewer: e4m3, e5m2, e2m3, e3m2, e2m1. Conversions are the same
// code on the host and on the device: integers, and one addition of floats that rounds to nearest. A code
// lies in the low bits of its byte; the bits above are 0.
//
//        largest   smallest > 0  infinity   NaN            NaN becomes     beyond the largest, infinity
// e4m3   448       2^-9          none       0x7f, 0xff     0x7f            the largest, of the same sign
// e5m2   57344     2^-16         0x7c 0xfc  0x7d-7f fd-ff  0x7f            the largest, of the same sign
// e2m3   7.5       2^-3          none       none           0x1f (7.5)      the largest, of the same sign
// e3m2   28        2^-4          none       none           0x1f (28)       the largest, of the same sign
// e2m1   6         2^-1          none       none           0x7 (6)         the largest, of the same sign
//
// These are the conversions of CUDA's headers with saturation (__NV_SATFINITE), bit for bit.
#pragma once

#include <bit>
#include <cstdint>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

enum class SpecialValues {
  kNone,         // every code is a number
  kNan,          // all ones is NaN, of either sign
  kInfinityNan,  // as in IEEE 754: the largest exponent is for infinities and NaNs
};

template <int kExponentBitsOf, int kMantissaBitsOf, int kBiasOf, SpecialValues kSpecialValuesOf>
struct MiniFloat {
  static constexpr int kExponentBits = kExponentBitsOf;
  static constexpr int kMantissaBits = kMantissaBitsOf;
  static constexpr int kBias = kBiasOf;
  static constexpr SpecialValues kSpecialValues = kSpecialValuesOf;

  static constexpr int kNumBits = 1 + kExponentBits + kMantissaBits;
  static constexpr uint32_t kSignBit = 1u << (kNumBits - 1);
  static constexpr uint32_t kMagnitudeMask = kSignBit - 1;
  static constexpr uint32_t kInfinityCode = kMagnitudeMask >> kMantissaBits << kMantissaBits;
  static constexpr uint32_t kMaxCode = kSpecialValues == SpecialValues::kNone  ? kMagnitudeMask
                                       : kSpecialValues == SpecialValues::kNan ? kMagnitudeMask - 1
                                                                               : kInfinityCode - 1;
  // What NaN becomes: a NaN where there is one, else the largest number.
  static constexpr uint32_t kNanCode = kMagnitudeMask;
  // The exponent of the largest number: emax of the OCP Microscaling specification.
  static constexpr int kMaxExponent = static_cast<int>(kMaxCode >> kMantissaBits) - kBias;

  uint8_t bits = 0;
  friend constexpr bool operator==(MiniFloat, MiniFloat) = default;

  SWITCHYARD_HD static constexpr bool is_nan(uint32_t code) {
    return kSpecialValues != SpecialValues::kNone && (code & kMagnitudeMask) > kMaxCode &&
           (code & kMagnitudeMask) != infinity_or_none();
  }
  // The largest number.
  SWITCHYARD_HD static constexpr float max();

 private:
  SWITCHYARD_HD static constexpr uint32_t infinity_or_none() {
    return kSpecialValues == SpecialValues::kInfinityNan ? kInfinityCode : ~0u;
  }
};

using e4m3 = MiniFloat<4, 3, 7, SpecialValues::kNan>;
using e5m2 = MiniFloat<5, 2, 15, SpecialValues::kInfinityNan>;
using e2m3 = MiniFloat<2, 3, 1, SpecialValues::kNone>;
using e3m2 = MiniFloat<3, 2, 3, SpecialValues::kNone>;
using e2m1 = MiniFloat<2, 1, 1, SpecialValues::kNone>;

// 2^exponent, exponent in [-126, 127].
SWITCHYARD_HD constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// Exact. A NaN keeps its sign and becomes the quiet NaN.
template <int kExponentBits, int kMantissaBits, int kBias, SpecialValues kSpecialValues>
SWITCHYARD_HD constexpr float to_float(MiniFloat<kExponentBits, kMantissaBits, kBias, kSpecialValues> value) {
  using Format = MiniFloat<kExponentBits, kMantissaBits, kBias, kSpecialValues>;
  const uint32_t sign = value.bits & Format::kSignBit ? 0x80000000u : 0u;
  const uint32_t code = value.bits & Format::kMagnitudeMask;
  uint32_t magnitude = (code << (23 - kMantissaBits)) + (static_cast<uint32_t>(127 - kBias) << 23);
  if (Format::is_nan(code))
    magnitude = 0x7fc00000u;
  else if (code > Format::kMaxCode)
    magnitude = 0x7f800000u;
  else if (code < 1u << kMantissaBits)  // zero and subnormals: a multiple of the smallest number
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(code) * power_of_two(1 - kBias - kMantissaBits));
  return std::bit_cast<float>(sign | magnitude);
}

template <int kExponentBits, int kMantissaBits, int kBias, SpecialValues kSpecialValues>
SWITCHYARD_HD constexpr float MiniFloat<kExponentBits, kMantissaBits, kBias, kSpecialValues>::max() {
  return to_float(MiniFloat{static_cast<uint8_t>(kMaxCode)});
}

// The nearest number, ties to the even code; what lies beyond the largest number becomes the largest. No
// branches: on a GPU it is about a dozen instructions.
template <typename Format>
SWITCHYARD_HD constexpr Format to_minifloat(float value) {
  constexpr uint32_t kShift = 23 - Format::kMantissaBits;
  constexpr uint32_t kMax = std::bit_cast<uint32_t>(Format::max());
  constexpr uint32_t kMinNormal = std::bit_cast<uint32_t>(power_of_two(1 - Format::kBias));
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> (32 - Format::kNumBits) & Format::kSignBit;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t clamped = magnitude < kMax ? magnitude : kMax;
  // A power of two whose last place is the format's last place at this exponent, which below the normal
  // numbers stays where it is. Adding the number to it rounds to nearest even, and leaves the significand,
  // leading one included, in the low bits.
  const uint32_t exponent = (clamped > kMinNormal ? clamped : kMinNormal) & 0x7f800000u;
  const uint32_t anchor = exponent + (kShift << 23);
  const float sum = std::bit_cast<float>(anchor) + std::bit_cast<float>(clamped);
  const uint32_t significand = std::bit_cast<uint32_t>(sum) - anchor;
  // A carry out of the significand is the next exponent.
  const uint32_t code = ((exponent - kMinNormal) >> kShift) + significand;
  return Format{static_cast<uint8_t>(magnitude > 0x7f800000u ? Format::kNanCode : sign | code)};
}

}  // namespace switchyard
