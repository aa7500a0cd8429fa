// The shared memory of an attention block: stages of queries, keys and values, and the barriers by which
// planner, producer and consumers hand them to each other.
#pragma once

#include <type_traits>

#include "switchyard/detail/attention/tile.hpp"
#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/pipeline.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A tile's queries are released before its output is stored: the tile after the next may be published while
// consumers still read the first, and the planner may be asked for the one after that.
inline constexpr int kNumTiles = 4;

// The stages come first: they need the largest alignment.
template <typename Config>
struct AttentionShared {
  using Bytes = unsigned char;

  alignas(target::kTileAlignment) Bytes queries[Config::kNumQueryStages][Config::kQueryBytes];
  alignas(target::kTileAlignment) Bytes keys[Config::kNumKeyStages][Config::kKeyBytes];
  alignas(target::kTileAlignment) Bytes values[Config::kNumKeyStages][Config::kKeyBytes];

  // Rows of the output, where the kernel lays them out before they are stored; each warp has 16.
  struct NoOutput {};
  using StagedOutput = Bytes[Config::kTileRows][Config::kStagedRowBytes];
  [[no_unique_address]] alignas(16) std::conditional_t<Config::kStagesOutput, StagedOutput, NoOutput> output;

  // What warps hand to each other at the end of a tile, where they share its keys.
  struct NoSums {};
  static constexpr int kNumSums = Config::kNumConsumers * kWarpgroupThreads / kWarpSize / 2;
  using WarpSums = Bytes[kNumSums][Config::kSumBytes];
  [[no_unique_address]] alignas(16) std::conditional_t<Config::kHasCodes, WarpSums, NoSums> sums;

  target::TransferBarrier queries_full[Config::kNumQueryStages], queries_empty[Config::kNumQueryStages];
  target::TransferBarrier keys_full[Config::kNumKeyStages], keys_empty[Config::kNumKeyStages];
  target::TransferBarrier values_full[Config::kNumKeyStages], values_empty[Config::kNumKeyStages];
  AttentionTile tiles[kNumTiles];
  BlocksSeen blocks_seen[kNumTiles][Config::kNumConsumers];
  target::TransferBarrier next_tile_full, next_tile_empty;  // of the tile after the last one published
  uint32_t scheduler_slots[2];
  uint32_t is_last_split;

  SWITCHYARD_DEVICE void init_barriers() {
    constexpr uint32_t kNumConsumerWarps = Config::kNumConsumers * kWarpgroupThreads / kWarpSize;
    next_tile_full.init(1);
    next_tile_empty.init(1);
    for (int stage = 0; stage < Config::kNumQueryStages; ++stage) {
      queries_full[stage].init(1);
      queries_empty[stage].init(kNumConsumerWarps);
    }
    for (int stage = 0; stage < Config::kNumKeyStages; ++stage) {
      keys_full[stage].init(1);
      keys_empty[stage].init(kNumConsumerWarps);
      values_full[stage].init(1);
      values_empty[stage].init(kNumConsumerWarps);
    }
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
