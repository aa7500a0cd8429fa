// The parameters of the kernels that bring rows per rank to their experts and back (ep/expand_rows.hpp).
#pragma once

#include <cstdint>

#include "switchyard/types/bf16.hpp"

namespace switchyard {

// The rows of a rank in RowLayout::kPerRank, each of which goes to as many experts as it has choices here;
// rows of a shared expert come first and go to it. The rows of the experts lie one expert behind the other,
// those of the shared expert in front.
struct ExpandedRows {
  int32_t hidden;
  int32_t top_k;
  int32_t n_local_experts;
  int32_t num_shared_groups;    // 1 if a shared expert is fused; else 0
  const uint32_t* row_offsets;  // [num_shared_groups + 2], as dispatch has written them
  const uint32_t* row_counts;   // [num_shared_groups + 1]
  const int32_t* row_experts;   // [rows][top_k]
  const float* row_weights;     // [rows][top_k]
  // Written by place_choices: where the rows of each expert begin, how many there are, and to which of them
  // each choice goes.
  uint32_t* group_offsets;  // [num_shared_groups + n_local_experts + 1]
  uint32_t* group_counts;   // [num_shared_groups + n_local_experts]
  uint32_t* row_of_choice;  // [rows][top_k]
};

struct ExpandRowsParams {
  ExpandedRows expanded;
  const bf16* rows;  // as they were dispatched
  bf16* expert_rows;
};

struct SumChoicesParams {
  ExpandedRows expanded;
  const bf16* expert_rows;  // what the experts made of them
  bf16* output;             // [rows][hidden], as combine takes them
};

}  // namespace switchyard
