// The tiles of all groups in one order, and the function from a place in it to a tile. A group's tiles come
// in bands of rows, in a band column by column, so that tiles that run concurrently read few different rows
// and weights.
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/macros.hpp"

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
