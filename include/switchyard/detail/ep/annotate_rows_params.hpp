// The parameters of annotate_rows.
#pragma once

#include <cstddef>

#include "switchyard/detail/sync/counters.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/expert_parallel.hpp"

namespace switchyard {

struct AnnotateRowsParams {
  int32_t my_rank;
  int32_t n_ranks;  // that exchange rows
  int32_t num_groups;
  int32_t first_group;        // that is this step's: rows of other steps may lie in front (row_sets)
  int32_t num_shared_groups;  // 1, or 0: no shared expert is fused
  uint32_t num_shared_rows;
  const uint32_t* row_offsets;  // [num_groups + 1], as dispatch has written them
  // The rows of each (local expert, source rank) pair: direct, as StepCell; else null, and counters have
  // them.
  const uint64_t* step_cells;
  EPLocalSyncCounters<> ep_counters;

  int32_t* src_ranks;  // [max_rows]; null: not wanted
  UnwrittenRows unwritten;
  int32_t* src_info;  // [max_rows][2]
  std::byte* rows;
  uint32_t row_bytes;
  std::byte* scales;
  ScalePlacement scale_placement;
  int32_t num_scales;        // of a row
  uint32_t row_scale_bytes;  // likewise
  uint32_t max_rows;
  WaitContext wait_context;
};

}  // namespace switchyard
