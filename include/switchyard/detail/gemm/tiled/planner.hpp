// The planner of a block of the tiled matmul: one warp that reads the sizes of the groups and finds the next
// tile. Blocks take tiles from a queue; pairs of blocks, which must agree on their tiles, stride through
// them.
#pragma once

#include "switchyard/detail/gemm/tiled/arrivals.hpp"
#include "switchyard/detail/gemm/tiled/kernel_params.hpp"
#include "switchyard/detail/gemm/tiled/shared.hpp"
#include "switchyard/detail/gemm/tiled/tile_grid.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, MatmulArrivals Arrivals>
class MatmulPlanner {
 public:
  SWITCHYARD_DEVICE MatmulPlanner(const MatmulSettings& settings, const Arrivals& arrivals,
                                  MatmulShared<Config>& shared)
      : settings_(settings),
        arrivals_(arrivals),
        shared_(shared),
        num_column_units_(ceil_div(settings.columns, uint32_t{TileUnit<Config>::kColumns})) {}

  SWITCHYARD_DEVICE void run() {
    uint32_t idx = static_cast<uint32_t>(target::block_idx()) / Config::kClusterBlocks;
    MatmulTile tile;
    do {
      // acquire MM-23: the producer asks for a tile, and all consumers and decoders have read the last one;
      // pairs with the releases in its run() and in take_tile()
      wait_together(shared_.tile_empty, asked_.parity() ^ 1);
      if (!is_first_) idx = next_after(idx);
      is_first_ = false;
      asked_.advance();
      tile = find(idx);
      if constexpr (Arrivals::kAwaits) {
        // The tiles of rows that will not come are taken all the same: the queue must be 0 in the end.
        while (tile.is_tile && !rows_have_arrived()) tile = find(idx = next_after(idx));
      }
      if (target::lane_idx() == 0) {
        target::st(&shared_.tile, tile);
        // release MM-22: publishes the tile; pairs with the waits for tile_full of producer, consumers and
        // decoders
        shared_.tile_full.arrive();
      }
      target::sync_warp();
    } while (tile.is_tile);
  }

 private:
  using Unit = TileUnit<Config>;

  SWITCHYARD_DEVICE RowRange rows_of(uint32_t group_idx) const {
    return rows_of_group(settings_.groups, group_idx);
  }
  SWITCHYARD_DEVICE uint32_t num_units(const RowRange& rows) const {
    return ceil_div(rows.count, Unit::kRows) * num_column_units_;
  }

  // Of the group of the last tile that was found. A block comes to a group once, so it waits for it once.
  SWITCHYARD_DEVICE bool rows_have_arrived() {
    if (group_of_tile_ != arrived_group_ && !is_broken_) {
      is_broken_ = !arrivals_.wait(group_of_tile_);
      arrived_group_ = group_of_tile_;
      target::sync_warp();  // each lane has acquired a part; one of them passes the tile on
    }
    return !is_broken_;
  }

  SWITCHYARD_DEVICE uint32_t next_after(uint32_t idx) {
    const uint32_t num_strides = static_cast<uint32_t>(target::num_blocks()) / Config::kClusterBlocks;
    if constexpr (Config::kIsPair) return idx + num_strides;
    if (num_units_in_all_ == 0) num_units_in_all_ = count_units();
    // The queue is 0 again after num_units_in_all_ increments: every tile but the first of each block is
    // taken once, and every block that had one asks once without success.
    uint32_t num_taken = 0;
    if (target::lane_idx() == 0)
      num_taken = target::atomic_inc_wrap_relaxed_device(settings_.queue, num_units_in_all_ - 1);
    return num_strides + target::shuffle(num_taken, 0);
  }
  SWITCHYARD_DEVICE uint32_t count_units() const {
    uint32_t count = 0;
    for (uint32_t group_idx = static_cast<uint32_t>(target::lane_idx());
         group_idx < settings_.groups.num_groups; group_idx += kWarpSize)
      count += num_units(rows_of(group_idx));
    for (int step = kWarpSize / 2; step > 0; step /= 2) count += target::shuffle_xor(count, step);
    return count;
  }

  // Finds the tile at place `idx`, which only grows. Each lane examines a group, so a warp examines 32 at a
  // time.
  SWITCHYARD_DEVICE MatmulTile find(uint32_t idx) {
    for (; first_group_ < settings_.groups.num_groups; first_group_ += kWarpSize) {
      const uint32_t group_idx = first_group_ + static_cast<uint32_t>(target::lane_idx());
      const RowRange rows = rows_of(group_idx);
      const uint32_t count = num_units(rows);
      uint32_t end = count;  // the units of this group and of those before it
      for (int delta = 1; delta < kWarpSize; delta *= 2) {
        const uint32_t before = target::shuffle_up(end, delta);
        if (target::lane_idx() >= delta) end += before;
      }
      const uint32_t in_groups = idx - num_units_before_;
      const uint32_t holders = target::ballot(in_groups < end);
      if (holders != 0) {
        const int lane = target::lowest_set_bit(holders);
        const RowRange rows_of_tile{target::shuffle(rows.first, lane), target::shuffle(rows.count, lane)};
        const uint32_t in_group = in_groups - target::shuffle(end - count, lane);
        group_of_tile_ = first_group_ + static_cast<uint32_t>(lane);
        return describe(group_of_tile_, rows_of_tile, in_group);
      }
      num_units_before_ += target::shuffle(end, kWarpSize - 1);
    }
    return MatmulTile{};
  }
  SWITCHYARD_DEVICE MatmulTile describe(uint32_t group_idx, const RowRange& rows, uint32_t in_group) const {
    const uint32_t num_row_units = ceil_div(rows.count, Unit::kRows);
    const TileIndex index = tile_of_place(in_group, num_row_units, num_column_units_, Config::kBandTiles);
    uint32_t row = index.row_tile * Unit::kRows, column = index.column_tile * Unit::kColumns;
    if constexpr (Config::kSharesWeights) row += target::cluster_block_idx() * Config::kTileRows;
    if constexpr (Config::kSharesRows) column += target::cluster_block_idx() * Config::kTileColumns;
    const uint32_t num_left = row < rows.count ? rows.count - row : 0;
    MatmulTile tile{};
    tile.first_row = rows.first + row;
    tile.first_column = column;
    tile.expert = settings_.expert_ids == nullptr ? static_cast<int32_t>(group_idx)
                                                  : target::ld(&settings_.expert_ids[group_idx]);
    tile.num_rows = static_cast<uint16_t>(num_left < Config::kTileRows ? num_left : Config::kTileRows);
    tile.is_tile = true;
    tile.is_alone = num_row_units == 1;
    return tile;
  }

  static constexpr uint32_t kNoGroup = UINT32_MAX;

  const MatmulSettings& settings_;
  const Arrivals& arrivals_;
  MatmulShared<Config>& shared_;
  const uint32_t num_column_units_;
  StageCursor<1> asked_;
  uint32_t first_group_ =
      0;  // the first that may hold the next place; the places before it are counted below
  uint32_t num_units_before_ = 0;
  uint32_t num_units_in_all_ = 0;
  uint32_t group_of_tile_ = 0;         // of the last one that was found
  uint32_t arrived_group_ = kNoGroup;  // whose rows were last waited for
  bool is_first_ = true;
  bool is_broken_ = false;  // rows will not come
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
