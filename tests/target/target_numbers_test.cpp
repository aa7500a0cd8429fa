// The vocabulary of target/ as a contract, continued: words that compute, which give the same bits on every
// target. Compiled for the host and, through cuda_tests.cu, for CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/target/target.hpp"
#include "target_fixture.hpp"

#define NumberWords SWITCHYARD_SUITE(NumberWords)

namespace switchyard {
namespace {

class NumberWords : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, NumberWords, testing_support::modes_of_target(), testing_support::mode_name);

struct BitParams {
  int num_masks;
  const uint32_t* masks;
  int* popcounts;
  int* lowest_bits;
};

SWITCHYARD_KERNEL void count_bits(BitParams params) {
  for (int i = target::thread_idx(); i < params.num_masks; i += target::num_threads()) {
    params.popcounts[i] = target::popcount(params.masks[i]);
    params.lowest_bits[i] = target::lowest_set_bit(params.masks[i]);
  }
}

TEST_P(NumberWords, PopcountAndLowestSetBitOfMasks) {
  std::vector<uint32_t> values;
  std::vector<int> num_set, lowest;
  for (int low = 0; low < 32; ++low)
    for (int high = low; high < 32; ++high) {  // all bits from low to high
      values.push_back((0xffffffffu << low) & (0xffffffffu >> (31 - high)));
      num_set.push_back(high - low + 1);
      lowest.push_back(low);
    }
  const auto masks = upload(values);
  const auto popcounts = zeros<int>(values.size()), lowest_bits = zeros<int>(values.size());
  run(count_bits, {.num_threads = 64},
      BitParams{static_cast<int>(values.size()), masks.data(), popcounts.data(), lowest_bits.data()});
  EXPECT_EQ(download(popcounts), num_set);
  EXPECT_EQ(download(lowest_bits), lowest);
}

struct ConversionParams {
  int num_values;
  const float* values;
  uint16_t* e4m3x2;  // [num_values]: the value, and the one behind it
  uint16_t* e5m2x2;
  uint32_t* bf16x2;
};

SWITCHYARD_KERNEL void convert_pairs(ConversionParams params) {
  for (int i = target::thread_idx(); i < params.num_values; i += target::num_threads()) {
    const float first = params.values[i], second = params.values[(i + 1) % params.num_values];
    params.e4m3x2[i] = target::to_e4m3x2(first, second);
    params.e5m2x2[i] = target::to_e5m2x2(first, second);
    params.bf16x2[i] = target::to_bf16x2(first, second);
  }
}

TEST_P(NumberWords, ConversionsOfPairsAreThoseOfTheHostBitForBit) {
  std::vector<float> floats;
  for (uint32_t upper = 0; upper < 65536; ++upper)  // every bf16 and the floats beside it
    for (const uint32_t lower : {0u, 1u, 0x8000u, 0xffffu})
      floats.push_back(std::bit_cast<float>(upper << 16 | lower));
  const auto values = upload(floats);
  const auto e4m3x2 = zeros<uint16_t>(floats.size()), e5m2x2 = zeros<uint16_t>(floats.size());
  const auto bf16x2 = zeros<uint32_t>(floats.size());
  run(convert_pairs, {.num_threads = 256},
      ConversionParams{static_cast<int>(floats.size()), values.data(), e4m3x2.data(), e5m2x2.data(),
                       bf16x2.data()});
  const std::vector<uint32_t> seen_bf16 = download(bf16x2);
  const std::vector<uint16_t> seen_e4m3 = download(e4m3x2), seen_e5m2 = download(e5m2x2);
  for (size_t i = 0; i < floats.size(); ++i) {
    const float first = floats[i], second = floats[(i + 1) % floats.size()];
    ASSERT_EQ(seen_e4m3[i], to_minifloat<e4m3>(first).bits | to_minifloat<e4m3>(second).bits << 8) << first;
    ASSERT_EQ(seen_e5m2[i], to_minifloat<e5m2>(first).bits | to_minifloat<e5m2>(second).bits << 8) << first;
    ASSERT_EQ(seen_bf16[i], to_bf16(first).bits | uint32_t{to_bf16(second).bits} << 16) << first;
  }
}

struct DecodingParams {
  float* values;       // [65536][2]: of the pair of codes
  uint32_t* permuted;  // [65536]
};

SWITCHYARD_KERNEL void decode_pairs(DecodingParams params) {
  for (int i = target::thread_idx(); i < 65536; i += target::num_threads()) {
    target::from_e4m3x2(static_cast<uint16_t>(i), params.values[2 * i], params.values[2 * i + 1]);
    params.permuted[i] = target::permute_bytes(0x03020100u, 0x07060504u, static_cast<uint32_t>(i) & 0x7777u);
  }
}

TEST_P(NumberWords, PairsOfFp8AreDecodedAndBytesPermutedTheSameOnEveryTarget) {
  const auto values = zeros<float>(2 * 65536);
  const auto permuted = zeros<uint32_t>(65536);
  run(decode_pairs, {.num_threads = 256}, DecodingParams{values.data(), permuted.data()});
  const std::vector<float> seen = download(values);
  const std::vector<uint32_t> seen_permuted = download(permuted);
  for (uint32_t i = 0; i < 65536; ++i) {
    for (const uint32_t k : {0u, 1u}) {
      const float expected = to_float(e4m3{static_cast<uint8_t>(i >> (8 * k))});
      if (expected == expected)
        ASSERT_EQ(std::bit_cast<uint32_t>(seen[2 * i + k]), std::bit_cast<uint32_t>(expected)) << i;
      else
        ASSERT_NE(seen[2 * i + k], seen[2 * i + k]) << i;
    }
    for (uint32_t byte = 0; byte < 4; ++byte)
      ASSERT_EQ(seen_permuted[i] >> (8 * byte) & 0xff, i >> (4 * byte) & 7) << i;
  }
}

// Integer conversions of the formats for which there is no instruction, and the larger of halves.
struct IntegerWordsParams {
  int num_values;
  const uint32_t* bits;
  uint32_t* codes;  // [num_values]: e2m3, e3m2, e2m1, e8m0
  uint32_t* maxima;
};

SWITCHYARD_KERNEL void convert_by_integers(IntegerWordsParams params) {
  for (int i = target::thread_idx(); i < params.num_values; i += target::num_threads()) {
    const float value = std::bit_cast<float>(params.bits[i]);
    params.codes[i] = to_minifloat<e2m3>(value).bits | to_minifloat<e3m2>(value).bits << 8 |
                      to_minifloat<e2m1>(value).bits << 16 |
                      static_cast<uint32_t>(to_e8m0_round_up(value).bits) << 24;
    params.maxima[i] = target::max_u16x2(params.bits[i], params.bits[(i + 1) % params.num_values]);
  }
}

TEST_P(NumberWords, IntegerConversionsAndMaximaOfHalvesAreTheSameOnEveryTarget) {
  std::vector<uint32_t> values;
  for (uint32_t upper = 0; upper < 65536; ++upper)
    for (const uint32_t lower : {0u, 1u, 0x8000u, 0xffffu}) values.push_back(upper * 0x9e3bu << 16 | lower);
  const auto bits = upload(values);
  const auto codes = zeros<uint32_t>(values.size()), maxima = zeros<uint32_t>(values.size());
  run(convert_by_integers, {.num_threads = 256},
      IntegerWordsParams{static_cast<int>(values.size()), bits.data(), codes.data(), maxima.data()});
  const std::vector<uint32_t> seen_codes = download(codes), seen_maxima = download(maxima);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t a = values[i], b = values[(i + 1) % values.size()];
    const float value = std::bit_cast<float>(a);
    ASSERT_EQ(seen_codes[i], to_minifloat<e2m3>(value).bits | to_minifloat<e3m2>(value).bits << 8 |
                                 to_minifloat<e2m1>(value).bits << 16 |
                                 static_cast<uint32_t>(to_e8m0_round_up(value).bits) << 24)
        << value;
    ASSERT_EQ(seen_maxima[i] >> 16, std::max(a >> 16, b >> 16));
    ASSERT_EQ(seen_maxima[i] & 0xffffu, std::max(a & 0xffffu, b & 0xffffu));
  }
}

}  // namespace
}  // namespace switchyard

#undef NumberWords
