// The library's epilogues of combine_wait, and the sum that an epilogue takes.
#pragma once

#include "switchyard/types/combine_epilogue.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Writes [num_tokens][hidden] in bf16, rounded once.
struct StoreWeighted {
  bf16* output;
  int32_t stride;  // elements from a token to the next

  SWITCHYARD_DEVICE void operator()(int token_idx, int column,
                                    const float (&values)[kColumnsPerThread]) const {
    target::st_16(output + static_cast<int64_t>(token_idx) * stride + column, pack_bf16(values));
  }
};
static_assert(CombineEpilogue<StoreWeighted>);

// Stands in place of an epilogue: rows are written as they came, [num_tokens][top_k][hidden], with zeros
// where the id is padding.
struct StoreUnreduced {
  bf16* output;
  int32_t stride;  // elements from a row to the next
};

// Adds eight columns of a row, weighted.
SWITCHYARD_DEVICE void accumulate(float (&sums)[kColumnsPerThread], const Vec16& row, float weight) {
  for (int i = 0; i < kColumnsPerThread; ++i) {
    const uint16_t bits = static_cast<uint16_t>(row.words[i / 2] >> (i % 2 * 16));
    sums[i] = target::add_product(sums[i], weight, to_float(bf16{bits}));
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
