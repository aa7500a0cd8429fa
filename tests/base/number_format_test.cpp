// The number formats of base/ against tables made from their definitions: every code, every bf16, and floats
// where rounding is decided.
#include "reference/number_format.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/base/packing.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

template <typename Format>
const reference::NumberFormat& definition_of();
template <>
const reference::NumberFormat& definition_of<e4m3>() {
  return reference::kE4M3;
}
template <>
const reference::NumberFormat& definition_of<e5m2>() {
  return reference::kE5M2;
}
template <>
const reference::NumberFormat& definition_of<e2m3>() {
  return reference::kE2M3;
}
template <>
const reference::NumberFormat& definition_of<e3m2>() {
  return reference::kE3M2;
}
template <>
const reference::NumberFormat& definition_of<e2m1>() {
  return reference::kE2M1;
}

template <typename Format>
class MiniFloatTest : public ::testing::Test {
 protected:
  void expect_rounded(float value) {
    ASSERT_EQ(to_minifloat<Format>(value).bits, round_(value))
        << value << ", bits " << std::hex << bits_of(value);
    ASSERT_EQ(to_minifloat<Format>(-value).bits, round_(-value)) << -value;
  }
  const reference::NumberFormat& definition = definition_of<Format>();

 private:
  reference::Rounder round_{definition};
};
using Formats = ::testing::Types<e4m3, e5m2, e2m3, e3m2, e2m1>;
class FormatName {
 public:
  template <typename Format>
  static std::string GetName(int) {
    return definition_of<Format>().name;
  }
};
TYPED_TEST_SUITE(MiniFloatTest, Formats, FormatName);

TYPED_TEST(MiniFloatTest, EveryCodeHasTheValueOfItsDefinitionAndComesBack) {
  for (int code = 0; code < this->definition.num_codes(); ++code) {
    const double expected = this->definition.value_of(code);
    const float value = to_float(TypeParam{static_cast<uint8_t>(code)});
    if (std::isnan(expected)) {
      EXPECT_EQ(bits_of(value), code & TypeParam::kSignBit ? 0xffc00000u : 0x7fc00000u) << "code " << code;
      EXPECT_TRUE(TypeParam::is_nan(code));
      EXPECT_EQ(to_minifloat<TypeParam>(value).bits, TypeParam::kNanCode) << "code " << code;
      continue;
    }
    EXPECT_FALSE(TypeParam::is_nan(code));
    EXPECT_EQ(bits_of(value), bits_of(static_cast<float>(expected))) << "code " << code;
    EXPECT_EQ(to_minifloat<TypeParam>(value).bits,
              std::isfinite(expected) ? static_cast<uint32_t>(code) : code - 1u);  // infinity saturates
  }
}

TYPED_TEST(MiniFloatTest, EveryBf16IsRoundedToTheNearest) {
  for (uint32_t bits = 0; bits < 65536; ++bits)
    this->expect_rounded(to_float(bf16{static_cast<uint16_t>(bits)}));
}

TYPED_TEST(MiniFloatTest, TheMiddleOfTwoNumbersIsWhereRoundingTurns) {
  for (uint32_t code = 0; code <= TypeParam::kMaxCode; ++code) {
    const float number = to_float(TypeParam{static_cast<uint8_t>(code)});
    // Beyond the largest number: where a next one would be.
    const float next = code < TypeParam::kMaxCode
                           ? to_float(TypeParam{static_cast<uint8_t>(code + 1)})
                           : 2 * number - to_float(TypeParam{static_cast<uint8_t>(code - 1)});
    for (const float place : {number, (number + next) / 2}) {
      this->expect_rounded(place);
      this->expect_rounded(std::nextafter(place, kInfinity));
      this->expect_rounded(std::nextafter(place, -kInfinity));
    }
  }
}

TYPED_TEST(MiniFloatTest, RandomFloatsOfAllExponentsAreRoundedToTheNearest) {
  std::mt19937 random(1);
  for (int i = 0; i < 300'000; ++i)
    this->expect_rounded(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // And where the format has its numbers.
  std::uniform_real_distribution<float> exponents(1 - TypeParam::kBias - TypeParam::kMantissaBits - 3.0f,
                                                  TypeParam::kMaxExponent + 2.0f);
  for (int i = 0; i < 300'000; ++i) this->expect_rounded(std::exp2(exponents(random)));
}

TYPED_TEST(MiniFloatTest, ExtremesSaturateAndSignsOfZeroAreKept) {
  constexpr uint8_t kMax = TypeParam::kMaxCode, kSign = TypeParam::kSignBit;
  for (const float huge : {kInfinity, std::numeric_limits<float>::max(), 2 * TypeParam::max()}) {
    EXPECT_EQ(to_minifloat<TypeParam>(huge).bits, kMax);
    EXPECT_EQ(to_minifloat<TypeParam>(-huge).bits, kSign | kMax);
  }
  for (const float tiny :
       {0.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()}) {
    EXPECT_EQ(to_minifloat<TypeParam>(tiny).bits, 0);
    EXPECT_EQ(to_minifloat<TypeParam>(-tiny).bits, kSign);
  }
  for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu})
    EXPECT_EQ(to_minifloat<TypeParam>(std::bit_cast<float>(nan)).bits, TypeParam::kMagnitudeMask);
}

TEST(MiniFloat, ConversionsAreConstantExpressions) {
  static_assert(e4m3::max() == 448 && e5m2::max() == 57344 && e2m3::max() == 7.5f && e3m2::max() == 28 &&
                e2m1::max() == 6);
  static_assert(e4m3::kMaxExponent == 8 && e5m2::kMaxExponent == 15 && e2m3::kMaxExponent == 2 &&
                e3m2::kMaxExponent == 4 && e2m1::kMaxExponent == 2);
  static_assert(to_minifloat<e4m3>(1.0f).bits == 0x38);
  static_assert(to_minifloat<e2m1>(-2.5f).bits == 0xc, "a tie goes to the even code");
}

TEST(E8M0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const e8m0 scale{static_cast<uint8_t>(code)};
    EXPECT_EQ(to_float(scale), std::ldexp(1.0f, code - 127));
    EXPECT_EQ(to_e8m0_round_down(to_float(scale)), scale);
    EXPECT_EQ(to_e8m0_round_up(to_float(scale)), scale);
    if (code == 254) continue;  // its reciprocal is not among the scales
    EXPECT_EQ(reciprocal(scale), std::ldexp(1.0f, 127 - code));
  }
  EXPECT_TRUE(std::isnan(to_float(e8m0{0xff})));
  EXPECT_TRUE(std::isnan(reciprocal(e8m0{0xff})));
}

// The power of two on the chosen side of |value|, within the range of codes.
int power_code(double value, bool up) {
  int code = 0;
  while (code < 254 && std::ldexp(1.0, code - 127) < std::fabs(value)) ++code;
  const bool is_above = std::ldexp(1.0, code - 127) > std::fabs(value);
  return !up && is_above && code > 0 ? code - 1 : code;
}

TEST(E8M0, RoundsDownOrUpAsAskedWithinItsRange) {
  std::vector<float> values{kInfinity, 0.0f, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min()};
  for (uint32_t bits = 0; bits < 0x7f80; ++bits)
    values.push_back(to_float(bf16{static_cast<uint16_t>(bits)}));
  for (int code = 0; code < 255; ++code) {
    const float power = std::ldexp(1.0f, code - 127);
    values.push_back(std::nextafter(power, 0.0f));
    values.push_back(std::nextafter(power, kInfinity));
  }
  for (const float value : values) {
    for (const float either_sign : {value, -value}) {
      EXPECT_EQ(to_e8m0_round_down(either_sign).bits, power_code(value, false)) << value;
      EXPECT_EQ(to_e8m0_round_up(either_sign).bits, power_code(value, true)) << value;
    }
  }
  EXPECT_EQ(to_e8m0_round_down(kNan).bits, 0xff);
  EXPECT_EQ(to_e8m0_round_up(-kNan).bits, 0xff);
}

template <typename Element>
void check_mx_scale() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float amax = std::fabs(to_float(bf16{static_cast<uint16_t>(bits)}));
    const e8m0 scale = mx_scale<Element>(amax);
    if (!std::isfinite(amax)) {
      EXPECT_EQ(scale.bits, 0xff);
      continue;
    }
    const int exponent = amax == 0 ? -1000 : std::ilogb(amax) - std::ilogb(Element::max());
    EXPECT_EQ(scale.bits, std::max(exponent, -127) + 127) << amax;
    EXPECT_TRUE(std::isfinite(reciprocal(scale)));
  }
}

TEST(E8M0, TheScaleOfABlockPutsItsLargestUnderTheElementsLargestExponent) {
  check_mx_scale<e4m3>();
  check_mx_scale<e5m2>();
  check_mx_scale<e2m3>();
  check_mx_scale<e3m2>();
  check_mx_scale<e2m1>();
}

template <int kNumBits>
void check_packing() {
  constexpr int kCount = 16, kNumCodes = 1 << kNumBits;
  for (int first = 0; first < kNumCodes; ++first) {
    uint8_t codes[kCount];
    uint32_t words[kCount * kNumBits / 32];
    for (int i = 0; i < kCount; ++i) codes[i] = static_cast<uint8_t>((first + i * 11) % kNumCodes);
    pack_codes<kNumBits>(codes, words);
    uint8_t bytes[sizeof(words)];
    for (size_t i = 0; i < sizeof(words); ++i) bytes[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
    // Bit by bit: bit b of code i is bit i * kNumBits + b of the bytes.
    for (int i = 0; i < kCount; ++i) {
      int code = 0;
      for (int b = 0; b < kNumBits; ++b)
        code |= (bytes[(i * kNumBits + b) / 8] >> ((i * kNumBits + b) % 8) & 1) << b;
      EXPECT_EQ(code, codes[i]);
      EXPECT_EQ(unpack_code<kNumBits>(bytes, i), codes[i]);
    }
  }
}

TEST(Packing, CodesLieInOrderFromTheLowestBitWithoutGaps) {
  check_packing<4>();
  check_packing<6>();
  check_packing<8>();
  EXPECT_EQ(packed_bytes(4, 6), 3u);
  EXPECT_EQ(packed_bytes(2, 4), 1u);
}

}  // namespace
}  // namespace switchyard
