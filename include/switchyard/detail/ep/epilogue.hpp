// What becomes of a combined token: the epilogues of combine_wait, and the sum they take.
#pragma once

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The columns that one thread handles at a time: 16 bytes of bf16.
inline constexpr int kColumnsPerThread = 8;

// An epilogue takes the router-weighted sum of a token, eight columns at a time, in fp32 before any rounding.
template <typename Epilogue>
concept CombineEpilogue = requires(const Epilogue epilogue, int token_idx, int column,
                                   const float (&values)[kColumnsPerThread]) {
  epilogue(token_idx, column, values);
};

// Rounds the sums to bf16.
SWITCHYARD_DEVICE Vec16 pack_bf16(const float* values) {
  Vec16 packed;
  SWITCHYARD_UNROLL
  for (int i = 0; i < kColumnsPerThread / 2; ++i)
    packed.words[i] = target::to_bf16x2(values[2 * i], values[2 * i + 1]);
  return packed;
}

// Writes [num_tokens][hidden] in bf16, rounded once.
struct StoreWeighted {
  bf16* output;
  int32_t hidden;

  SWITCHYARD_DEVICE void operator()(int token_idx, int column,
                                    const float (&values)[kColumnsPerThread]) const {
    target::st_16(output + static_cast<int64_t>(token_idx) * hidden + column, pack_bf16(values));
  }
};
static_assert(CombineEpilogue<StoreWeighted>);

// Stands in place of an epilogue: rows are written as they came, [num_tokens][top_k][hidden], with zeros
// where the id is padding.
struct StoreUnreduced {
  bf16* output;
};

// Adds eight columns of a row, weighted.
SWITCHYARD_DEVICE void accumulate(float (&sums)[kColumnsPerThread], const Vec16& row, float weight) {
  for (int i = 0; i < kColumnsPerThread; ++i) {
    const uint16_t bits = static_cast<uint16_t>(row.words[i / 2] >> (i % 2 * 16));
    sums[i] = target::add_product(sums[i], weight, to_float(bf16{bits}));
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
