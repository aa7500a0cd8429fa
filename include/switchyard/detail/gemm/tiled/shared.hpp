// The shared memory of a block of the tiled matmul: stages of rows and weights, the current tile, and the
// barriers by which planner, producer and consumers hand them to each other.
#pragma once

#include <type_traits>

#include "switchyard/detail/gemm/tiled/config.hpp"
#include "switchyard/detail/target/pipeline.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The tile is read and written whole.
struct alignas(16) MatmulTile {
  uint32_t first_row;
  uint32_t first_column;
  int32_t expert;
  uint16_t num_rows;  // 0 in the half of a pair that has none
  bool is_tile;       // false: no more tiles will come
  bool is_alone;      // no other tile reads its weights
};

struct EmptyMember {};

// The stages come first: they need the largest alignment.
template <typename Config>
struct MatmulShared {
  using Bytes = unsigned char;

  alignas(target::kTileAlignment) Bytes rows[Config::kNumStages][Config::kNumPanels * Config::kRowPanelBytes];
  alignas(target::kTileAlignment)
      Bytes weights[Config::kNumStages][Config::kNumWeightPanels * Config::kWeightPanelBytes];
  target::TransferBarrier full[Config::kNumStages], empty[Config::kNumStages];
  target::TransferBarrier tile_full, tile_empty;
  MatmulTile tile;
  // Two tiles' largest magnitudes of the rows, as bits, where two consumers have half of an output's scale
  // group each.
  using RowAmax = uint32_t[2][2][kWarpgroupRows];
  std::conditional_t<Config::kSplitsScaleGroup, RowAmax, EmptyMember> row_amax;

  SWITCHYARD_DEVICE void init_barriers() {
    constexpr uint32_t kNumConsumerThreads = Config::kNumConsumers * kWarpgroupThreads;
    constexpr uint32_t kNumConsumerWarps = kNumConsumerThreads / kWarpSize;
    for (int stage = 0; stage < Config::kNumStages; ++stage) {
      full[stage].init(1 + Config::kNumDecoders);
      empty[stage].init(Config::kIsCoded ? kNumConsumerThreads : kNumConsumerWarps * Config::kClusterBlocks);
    }
    tile_full.init(1);
    tile_empty.init(kNumConsumerWarps + 1 + Config::kNumDecoderWarps);  // one is the producer's
  }
};

// For a whole warp: one lane waits for the tile that the cursor has come to, reads it and tells the others.
// (A lane that looked at tile_full after the arrival below would miss the barrier phase and wait forever.)
template <typename Config>
SWITCHYARD_DEVICE MatmulTile take_tile(MatmulShared<Config>& shared, StageCursor<1>& tiles) {
  MatmulTile tile{};
  if (target::lane_idx() == 0) {
    // acquire MM-22: the next tile; pairs with the release in the planner's run()
    wait_for_phase(shared.tile_full, tiles.parity());
    tile = target::ld(&shared.tile);
    // release MM-23: the tile was read; pairs with the planner's wait before it writes the next one
    shared.tile_empty.arrive();
  }
  target::sync_warp();  // what the planner had seen was written before the other lanes' loads, too
  tiles.advance();
  const uint32_t packed = target::shuffle(
      uint32_t{tile.num_rows} | uint32_t{tile.is_tile} << 16 | uint32_t{tile.is_alone} << 17, 0);
  return {.first_row = target::shuffle(tile.first_row, 0),
          .first_column = target::shuffle(tile.first_column, 0),
          .expert = target::shuffle(tile.expert, 0),
          .num_rows = static_cast<uint16_t>(packed),
          .is_tile = (packed >> 16 & 1) != 0,
          .is_alone = (packed >> 17 & 1) != 0};
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
