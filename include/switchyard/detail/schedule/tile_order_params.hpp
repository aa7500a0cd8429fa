// How a launch describes the order of its tiles, in numbers: the kernel makes a scheduler of them
// (any_scheduler.hpp).
#pragma once

#include "switchyard/types/tile_summary.hpp"

namespace switchyard {

struct TileOrderParams {
  TileSchedulerKind kind = TileSchedulerKind::kTile;
  MHASchedule order = MHASchedule::DEFAULT;
  MHATileShape shape;
  uint32_t* queue = nullptr;              // kQueued: a word that is 0 before and after every launch
  const uint32_t* row_offsets = nullptr;  // of queries; null: all sequences have max_seq_len
  MHATilePlan plan;
  uint32_t batch_size = 0;
  uint32_t max_num_prompt_tiles = 0;
  uint32_t max_seq_len = 0;
  uint32_t max_num_keys = 0;

  template <ValidLength Lengths>
  SWITCHYARD_HD MHATileSummary<Lengths> summary(const Lengths& lengths) const {
    return {batch_size, max_num_prompt_tiles, lengths, max_seq_len, plan, max_num_keys};
  }
};

}  // namespace switchyard
