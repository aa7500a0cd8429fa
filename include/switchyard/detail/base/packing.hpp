// Codes of 4, 6 and 8 bits without gaps, little-endian: the first code is in the lowest bits of the first
// byte. Two codes of 4 bits are one byte, four of 6 bits are three.
#pragma once

#include <cstdint>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// Bytes of `count` codes of `num_bits` bits, where these are whole bytes: any count of 8, an even one of 4, a
// multiple of four of 6.
SWITCHYARD_HD constexpr uint32_t packed_bytes(uint32_t count, int num_bits) {
  return count * static_cast<uint32_t>(num_bits) / 8;
}

// Packs kCount codes of kNumBits bits into words. Bits of the last word beyond them are 0.
template <int kNumBits, int kCount>
SWITCHYARD_HD constexpr void pack_codes(const uint8_t (&codes)[kCount],
                                        uint32_t (&words)[(kNumBits * kCount + 31) / 32]) {
  for (uint32_t& word : words) word = 0;
  for (int i = 0; i < kCount; ++i) {
    const int bit = i * kNumBits, word_idx = bit / 32, shift = bit % 32;
    words[word_idx] |= static_cast<uint32_t>(codes[i]) << shift;
    if (shift + kNumBits > 32) words[word_idx + 1] |= static_cast<uint32_t>(codes[i]) >> (32 - shift);
  }
}

// Code `idx` of a packed array.
template <int kNumBits>
SWITCHYARD_HD constexpr uint8_t unpack_code(const uint8_t* packed, uint64_t idx) {
  const uint64_t bit = idx * kNumBits;
  const uint32_t shift = static_cast<uint32_t>(bit % 8);
  uint32_t two_bytes = packed[bit / 8];
  if (shift + kNumBits > 8) two_bytes |= static_cast<uint32_t>(packed[bit / 8 + 1]) << 8;
  return static_cast<uint8_t>(two_bytes >> shift & ((1u << kNumBits) - 1));
}

}  // namespace switchyard
