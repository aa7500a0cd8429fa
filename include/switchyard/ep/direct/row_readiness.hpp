// Where a kernel that starts before dispatch_wait sees which rows are there: readiness.hpp says how.
#pragma once

#include "switchyard/sync/fault.hpp"

namespace switchyard {

struct RowReadiness {
  const uint64_t* cells;       // [n_local_experts][n_ranks], a StepCell each
  const int32_t* num_steps;    // whose dispatch has ended; the one under way is the next
  const int32_t* row_offsets;  // [n_local_experts + 1], known before any row is there
  int32_t n_ranks;
  FaultChannel fault;  // takes experts by their local index
};

}  // namespace switchyard
