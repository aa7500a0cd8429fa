// What the calls of ExpertParallel (expert_parallel.hpp) and its kernels both know: what becomes of combined
// values, and which tokens of a rank its shared expert works on. Plain values; they own nothing.
#pragma once

#include <cstdint>

#include "switchyard/detail/base/macros.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {

struct OwnEpilogue;

enum class CombineReduction {
  kWeighted,     // the sum of a token's rows, each times its weight, in fp32 and rounded once
  kUnreduced,    // a token's top_k rows as they came, with zeros where the id is padding
  kOwnEpilogue,  // an epilogue of the caller's takes the weighted sums
};

// What becomes of the combined values.
struct CombineDestination {
  CombineReduction reduction = CombineReduction::kWeighted;
  bf16* output = nullptr;  // [num_tokens][hidden], or [num_tokens][top_k][hidden] unreduced
  // Instead of an output: an epilogue that takes the weighted sums, and the kernels of its type.
  // own_destination() in own_kernels.hpp fills in both.
  const void* epilogue = nullptr;
  const OwnEpilogue* epilogue_kernels = nullptr;
  // From a row of the output to the next, a multiple of 16; 0: they are contiguous.
  uint64_t output_stride_bytes = 0;
};

// What becomes of rows that only fill up their group, behind those that have been written. Marked: their
// src_info, and src_ranks if that is wanted, are -1. Zeroed: the same, and rows and scales are 0.
enum class UnwrittenRows { kLeft, kMarked, kZeroed };

// The shared expert, where one is fused in: tokens [first_token, first_token + num_tokens) of this rank are
// rows [0, num_tokens) of its own output, group 0.
struct SharedExpertTokens {
  int32_t num_groups;  // 1, or 0: there is none
  int32_t first_token;
  int32_t num_tokens;

  // Returns the token's row, or -1 if it has none.
  SWITCHYARD_HD constexpr int row_of(int token_idx) const {
    const int row = token_idx - first_token;
    return row >= 0 && row < num_tokens ? row : -1;
  }
};

}  // namespace switchyard
