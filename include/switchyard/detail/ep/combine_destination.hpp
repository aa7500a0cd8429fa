// What becomes of the combined values.
#pragma once

#include "switchyard/detail/base/bf16.hpp"

namespace switchyard {

enum class CombineReduction { kWeighted, kUnreduced };

// [num_tokens][hidden], or [num_tokens][top_k][hidden] unreduced.
struct CombineDestination {
  CombineReduction reduction = CombineReduction::kWeighted;
  bf16* output = nullptr;
};

}  // namespace switchyard
