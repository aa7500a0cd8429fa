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

// The codes of keys and values, where these are fp8.
template <typename Config, bool kHasCodes = Config::kHasCodes>
struct CodeStages {};

template <typename Config>
struct CodeStages<Config, true> {
  struct Ring {
    alignas(target::kTileAlignment) unsigned char codes[Config::kNumLoadStages][Config::kLoadBytes];
    target::TransferBarrier full[Config::kNumLoadStages], empty[Config::kNumLoadStages];
    uint32_t is_end[Config::kNumLoadStages];  // no codes are there, and none will come
  };
  Ring key_codes, value_codes;
};

// The stages come first: they need the largest alignment.
template <typename Config>
struct AttentionShared : CodeStages<Config> {
  using Bytes = unsigned char;

  alignas(target::kTileAlignment) Bytes queries[Config::kNumQueryStages][Config::kQueryBytes];
  alignas(target::kTileAlignment) Bytes keys[Config::kNumKeyStages][Config::kKeyBytes];
  alignas(target::kTileAlignment) Bytes values[Config::kNumKeyStages][Config::kKeyBytes];

  // Rows of the output, where the kernel lays them out before they are stored; each warp has 16.
  struct NoOutput {};
  using StagedOutput = Bytes[Config::kTileRows][Config::kStagedRowBytes];
  [[no_unique_address]] alignas(16) std::conditional_t<Config::kStagesOutput, StagedOutput, NoOutput> output;

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
    // The producer's lane, or the warps of a converter.
    constexpr uint32_t kNumWriters = Config::kHasCodes ? kWarpgroupThreads / kWarpSize : 1;
    for (int stage = 0; stage < Config::kNumKeyStages; ++stage) {
      keys_full[stage].init(kNumWriters);
      keys_empty[stage].init(kNumConsumerWarps);
      values_full[stage].init(kNumWriters);
      values_empty[stage].init(kNumConsumerWarps);
    }
    if constexpr (Config::kHasCodes)
      for (int stage = 0; stage < Config::kNumLoadStages; ++stage)
        for (auto* ring : {&this->key_codes, &this->value_codes}) {
          ring->full[stage].init(1);
          ring->empty[stage].init(kNumWriters);
          target::st(&ring->is_end[stage], 0u);
        }
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
