// What becomes of the combined values.
#pragma once

#include "switchyard/detail/base/bf16.hpp"

namespace switchyard {

struct OwnEpilogue;

enum class CombineReduction { kWeighted, kUnreduced, kOwnEpilogue };

struct CombineDestination {
  CombineReduction reduction = CombineReduction::kWeighted;
  bf16* output = nullptr;  // [num_tokens][hidden], or [num_tokens][top_k][hidden] unreduced
  // Instead of an output: an epilogue that takes the weighted sums, and the kernels of its type.
  // own_destination() in own_kernels.hpp fills in both.
  const void* epilogue = nullptr;
  const OwnEpilogue* epilogue_kernels = nullptr;
};

}  // namespace switchyard
