// The small kernel before the large one, which plans the order of a ragged batch.
#pragma once

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/schedule/tile_plan.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_KERNEL void plan_tiles_kernel(PlanTilesParams params) {
  target::grid_dependency_wait();
  target::grid_dependency_launch();
  const uint32_t num_threads = static_cast<uint32_t>(target::num_blocks() * target::num_threads());
  for (uint32_t i = static_cast<uint32_t>(target::block_idx() * target::num_threads() + target::thread_idx());
       i < params.batch_size; i += num_threads) {
    const auto num_keys_of = [&](uint32_t prompt_idx) { return params.keys.num_keys(prompt_idx); };
    if (sorts_sequences(params.order))
      plan_sequence<MHASchedule::LPT>(params.row_offsets, params.batch_size, params.tile_rows, i, params.plan,
                                      num_keys_of);
    else
      plan_sequence<MHASchedule::DEFAULT>(params.row_offsets, params.batch_size, params.tile_rows, i,
                                          params.plan, num_keys_of);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
