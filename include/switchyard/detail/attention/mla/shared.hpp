// The shared memory of an MLA block: the queries of a tile, stages of latents, and the weights that one
// consumer hands to the other.
#pragma once

#include "switchyard/detail/attention/mla/config.hpp"
#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// What the first consumer knows of its rows, thread by thread, and the second needs.
struct alignas(16) RowSums {
  float max[2];
  float sum[2];
};

template <typename Config>
struct MlaShared {
  using Bytes = unsigned char;

  alignas(target::kTileAlignment) Bytes queries[Config::kNumQueryStages][Config::kQueryBytes];
  alignas(target::kTileAlignment) Bytes latents[Config::kNumKeyStages][Config::kLatentBytes];
  alignas(16) Bytes weights[Config::kWeightBytes];  // or, behind a tile's last block, RowSums of each thread
  float shrinks[kWarpgroupThreads][2];

  target::TransferBarrier queries_full[Config::kNumQueryStages], queries_empty[Config::kNumQueryStages];
  target::TransferBarrier latents_full[Config::kNumKeyStages][Config::kNumStrips];
  target::TransferBarrier latents_empty[Config::kNumKeyStages][Config::kNumStrips];
  target::TransferBarrier weights_full, weights_empty;
  AttentionTile tiles[kNumTiles];
  BlocksSeen blocks_seen[kNumTiles][Config::kNumConsumers];
  target::TransferBarrier next_tile_full, next_tile_empty;  // of the tile after the last one published
  uint32_t scheduler_slots[2];
  uint32_t is_last_split;

  SWITCHYARD_DEVICE void init_barriers() {
    constexpr uint32_t kWarpsOfConsumer = kWarpgroupThreads / kWarpSize;
    next_tile_full.init(1);
    next_tile_empty.init(1);
    weights_full.init(kWarpsOfConsumer);
    weights_empty.init(kWarpsOfConsumer);
    for (int stage = 0; stage < Config::kNumQueryStages; ++stage) {
      queries_full[stage].init(1);
      queries_empty[stage].init(Config::kNumConsumers * kWarpsOfConsumer);
    }
    for (int stage = 0; stage < Config::kNumKeyStages; ++stage)
      for (int strip = 0; strip < Config::kNumStrips; ++strip) {
        latents_full[stage][strip].init(1);
        latents_empty[stage][strip].init(kWarpsOfConsumer);
      }
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
