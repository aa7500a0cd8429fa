// Writes the plan of a ragged batch: the order of its sequences, and how many tiles lie before each. Each
// sequence finds its own position by comparing all lengths, so any threads can share the work, in any order
// and without synchronisation: batch_size squared comparisons in all.
#pragma once

#include "switchyard/types/tile_summary.hpp"

namespace switchyard {

// Call it for every prompt_idx of the batch; the plan is complete when all calls have been made (and what
// they wrote is visible). An order that sorts sequences (LPT) puts those with more keys first, since that is
// what their longest tiles cost; the other orders leave them as they are. num_keys_of(prompt_idx) returns how
// many keys a sequence has. For an empty batch the caller sets tile_offsets[0] to 0.
template <MHASchedule kSchedule, typename NumKeysOf>
SWITCHYARD_HD void plan_sequence(const uint32_t* row_offsets, uint32_t batch_size, uint32_t tile_shape,
                                 uint32_t prompt_idx, const MHATilePlan& plan, NumKeysOf num_keys_of) {
  const uint32_t num_keys = num_keys_of(prompt_idx);
  uint32_t position = 0, num_tiles_before = 0, num_tiles = 0;
  for (uint32_t other = 0; other < batch_size; ++other) {
    const uint32_t other_len = row_offsets[other + 1] - row_offsets[other];
    const uint32_t other_tiles = other_len / tile_shape + (other_len % tile_shape != 0);
    num_tiles += other_tiles;
    const uint32_t other_keys = sorts_sequences(kSchedule) ? num_keys_of(other) : num_keys;
    if (other_keys == num_keys ? other >= prompt_idx : other_keys < num_keys) continue;
    ++position;
    num_tiles_before += other_tiles;
  }
  plan.sequence_order[position] = prompt_idx;
  plan.tile_offsets[position] = num_tiles_before;
  if (plan.num_keys != nullptr) plan.num_keys[position] = num_keys;
  if (position + 1 == batch_size) plan.tile_offsets[batch_size] = num_tiles;
}

// The same where every sequence has as many keys as queries.
template <MHASchedule kSchedule>
SWITCHYARD_HD void plan_sequence(const uint32_t* row_offsets, uint32_t batch_size, uint32_t tile_shape,
                                 uint32_t prompt_idx, const MHATilePlan& plan) {
  plan_sequence<kSchedule>(row_offsets, batch_size, tile_shape, prompt_idx, plan,
                           [=](uint32_t i) { return row_offsets[i + 1] - row_offsets[i]; });
}

}  // namespace switchyard
