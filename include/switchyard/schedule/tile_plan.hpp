// Writes the plan of a ragged batch: which sequence comes when, and how many tiles lie before it. Each
// sequence finds its own place by looking at all lengths, so any threads can share them, in any order and
// without synchronisation: batch_size squared looks in all.
#pragma once

#include "switchyard/schedule/tile_summary.hpp"

namespace switchyard {

// Call it for every prompt_idx of the batch; the plan is whole when all calls have been made (and what they
// wrote is visible). LPT puts longer sequences first; the other orders leave them as they are.
// Of an empty batch the caller sets tile_offsets[0] to 0.
template <MHASchedule kSchedule>
SWITCHYARD_HD void plan_sequence(const uint32_t* row_offsets, uint32_t batch_size, uint32_t tile_shape,
                                 uint32_t prompt_idx, const MHATilePlan& plan) {
  const uint32_t seq_len = row_offsets[prompt_idx + 1] - row_offsets[prompt_idx];
  uint32_t position = 0, num_tiles_before = 0, num_tiles = 0;
  for (uint32_t other = 0; other < batch_size; ++other) {
    const uint32_t other_len = row_offsets[other + 1] - row_offsets[other];
    const uint32_t other_tiles = other_len / tile_shape + (other_len % tile_shape != 0);
    num_tiles += other_tiles;
    const bool is_tie = kSchedule != MHASchedule::LPT || other_len == seq_len;
    if (is_tie ? other >= prompt_idx : other_len < seq_len) continue;
    ++position;
    num_tiles_before += other_tiles;
  }
  plan.sequence_order[position] = prompt_idx;
  plan.tile_offsets[position] = num_tiles_before;
  if (position + 1 == batch_size) plan.tile_offsets[batch_size] = num_tiles;
}

}  // namespace switchyard
