// The completion of a matmul whose output combine takes while it still runs.
#pragma once

#include "switchyard/detail/gemm/tiled/completion.hpp"
#include "switchyard/row_completion.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct ExpertCompletion {
  static constexpr bool kTells = true;

  RowCompletion rows;

  SWITCHYARD_DEVICE void complete_part(uint32_t group_idx, uint32_t num_parts) const {
    switchyard::complete_part(rows, group_idx, num_parts);
  }
};
static_assert(MatmulCompletion<ExpertCompletion>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
