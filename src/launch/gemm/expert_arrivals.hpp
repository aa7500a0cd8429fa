// The arrivals of a matmul whose last groups are the rank's experts: their rows are there when every rank has
// signalled them.
#pragma once

#include "switchyard/detail/gemm/tiled/arrivals.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct ExpertArrivals {
  static constexpr bool kAwaits = true;

  RowReadiness readiness;
  uint32_t num_complete_groups;  // in front of the experts'; this rank's own dispatch_async has filled them

  // A lane waits for a rank.
  SWITCHYARD_DEVICE bool wait(uint32_t group_idx) const {
    if (group_idx < num_complete_groups) return true;
    bool arrived = true;
    SWITCHYARD_ROLLED
    for (int rank = target::lane_idx(); rank < readiness.n_ranks; rank += kWarpSize)
      arrived &= wait_for_rows_of_rank(readiness, static_cast<int>(group_idx - num_complete_groups), rank);
    return target::ballot(!arrived) == 0;
  }
};
static_assert(MatmulArrivals<ExpertArrivals>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
