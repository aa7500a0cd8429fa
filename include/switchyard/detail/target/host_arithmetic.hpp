// The innermost loops of tile products on the CPU, over arrays of the calling thread. Their bounds are
// compile-time constants and no other thread sees the arrays, so a sanitizer has nothing to find in them; it
// would make them ten times as slow, and its tests spend most of their time there. What lies in shared memory
// is loaded before, by words that it watches. None of these calls a function that is watched: the compiler
// would not inline it.
#pragma once

#include "switchyard/detail/target/vocabulary.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SWITCHYARD_UNSANITIZED __attribute__((no_sanitize("address", "undefined", "thread"), noinline))
#else
#define SWITCHYARD_UNSANITIZED
#endif

namespace switchyard::inline host_target {

// sum + a[0] b[0] + a[1] b[1] + .., in this order.
template <int kCount>
SWITCHYARD_UNSANITIZED inline float add_products(float sum, const float* a, const float* b) {
  for (int i = 0; i < kCount; ++i) sum += a[i] * b[i];
  return sum;
}

// sums[i] += factor * values[i].
template <int kCount>
SWITCHYARD_UNSANITIZED inline void add_scaled(float* sums, float factor, const float* values) {
  for (int i = 0; i < kCount; ++i) sums[i] += factor * values[i];
}

// Eight bf16 as floats. A bf16 is the upper half of a float.
SWITCHYARD_UNSANITIZED inline void unpack_bf16(const Vec16& packed, float* values) {
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __builtin_bit_cast(float, packed.words[i] << 16);
    values[2 * i + 1] = __builtin_bit_cast(float, packed.words[i] & 0xffff0000u);
  }
}

// Sixteen codes of a byte each as the values that a table of 256 has for them.
SWITCHYARD_UNSANITIZED inline void unpack_codes(const Vec16& packed, const float* table, float* values) {
  for (int i = 0; i < 16; ++i) values[i] = table[packed.words[i / 4] >> (i % 4 * 8) & 0xff];
}

// Thirty-two codes of half a byte each, by a table of 16.
SWITCHYARD_UNSANITIZED inline void unpack_half_bytes(const Vec16& packed, const float* table, float* values) {
  for (int i = 0; i < 32; ++i) values[i] = table[packed.words[i / 8] >> (i % 8 * 4) & 0xf];
}

// values[i] *= factor.
template <int kCount>
SWITCHYARD_UNSANITIZED inline void multiply_all(float* values, float factor) {
  for (int i = 0; i < kCount; ++i) values[i] *= factor;
}

}  // namespace switchyard::inline host_target
