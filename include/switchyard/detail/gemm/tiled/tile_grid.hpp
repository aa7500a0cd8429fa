// The tiles of all groups in one order, and the function from a place in it to a tile. A group's tiles come
// in bands of rows, in a band column by column, so that tiles that run concurrently read few different rows
// and weights.
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/macros.hpp"
#include "switchyard/detail/gemm/tiled/params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard {

struct TileIndex {
  uint32_t row_tile;
  uint32_t column_tile;
};

// The tile at a place of a group of num_row_tiles x num_column_tiles; the place is below their product.
SWITCHYARD_HD constexpr TileIndex tile_of_place(uint32_t idx, uint32_t num_row_tiles,
                                                uint32_t num_column_tiles, uint32_t band_tiles) {
  const uint32_t band = idx / (band_tiles * num_column_tiles);
  const uint32_t first_row_tile = band * band_tiles;
  const uint32_t num_left = num_row_tiles - first_row_tile;
  const uint32_t width = num_left < band_tiles ? num_left : band_tiles;
  const uint32_t in_band = idx - first_row_tile * num_column_tiles;
  return {first_row_tile + in_band % width, in_band / width};
}

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

struct RowRange {
  uint32_t first;
  uint32_t count;
};

// Returns the rows of a group: none past the last group, and none past the end of the tensors.
SWITCHYARD_DEVICE RowRange rows_of_group(const GroupRows& groups, uint32_t group_idx) {
  if (group_idx >= groups.num_groups) return {0, 0};
  RowRange rows;
  rows.first = groups.row_offsets == nullptr ? group_idx * groups.capacity
                                             : target::ld(&groups.row_offsets[group_idx]);
  const uint32_t end = groups.row_counts == nullptr ? target::ld(&groups.row_offsets[group_idx + 1])
                                                    : rows.first + target::ld(&groups.row_counts[group_idx]);
  const uint32_t last = end < groups.max_rows ? end : groups.max_rows;
  rows.count = rows.first < last ? last - rows.first : 0;
  return rows;
}

// Returns the group that a row belongs to: the last one that begins at or before it, since groups without
// rows may begin there, too.
SWITCHYARD_DEVICE uint32_t group_of_row(const GroupRows& groups, uint32_t row) {
  if (groups.row_offsets == nullptr) return row / groups.capacity;
  uint32_t first = 0, end = groups.num_groups;
  while (end - first > 1) {
    const uint32_t middle = first + (end - first) / 2;
    if (target::ld(&groups.row_offsets[middle]) <= row)
      first = middle;
    else
      end = middle;
  }
  return first;
}

// What a place in the order holds: the tile of a block, or the two tiles of a pair.
template <typename Config>
struct TileUnit {
  static constexpr uint32_t kRows = Config::kTileRows * (Config::kSharesWeights ? 2 : 1);
  static constexpr uint32_t kColumns = Config::kTileColumns * (Config::kSharesRows ? 2 : 1);

  // Of a group with so many rows.
  SWITCHYARD_DEVICE static uint32_t count(uint32_t num_rows, uint32_t num_columns) {
    return ceil_div(num_rows, kRows) * ceil_div(num_columns, kColumns);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
