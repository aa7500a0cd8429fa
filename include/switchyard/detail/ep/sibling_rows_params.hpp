// The parameters of the kernels that know siblings (ep/sibling_rows.hpp, ep/reduce_siblings.hpp).
#pragma once

#include "switchyard/detail/ep/params.hpp"

namespace switchyard {

// What a rank knows of the rows that have come to it, and of the siblings among them.
struct LinkedRows {
  EpShape shape;
  int32_t my_rank;
  int32_t first_group;         // 1 if a shared expert is fused, whose rows have no siblings; else 0
  const uint64_t* step_cells;  // DispatchCountLayout: the rows of each (local expert, source rank) pair
  const uint32_t* links;       // [max_rows], a RowLink each
  EPLocalSyncCounters<> ep_counters;
  WaitContext wait_context;
};

struct FillSiblingsParams {
  LinkedRows linked;
  std::byte* rows;
  uint32_t row_bytes;
  std::byte* scales;      // of a tensor that has them by row
  uint32_t scales_bytes;  // of a row; 0: there are none, or each row has its own already
};

struct ReduceSiblingsParams {
  LinkedRows linked;
  void* expert_rows;         // [max_rows]: a sum overwrites the first of its rows
  const float* row_weights;  // [max_rows]
};

}  // namespace switchyard
