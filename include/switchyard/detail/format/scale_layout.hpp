// The layouts of the tensors of scales. docs/formats.md has pictures.
#pragma once

#include <cstdint>

#include "switchyard/detail/base/checked.hpp"

namespace switchyard {

// float [hidden / 128][stride]: the scales of a column of scale groups are contiguous, and each expert's
// scales start at a multiple of 16 bytes, since its rows start at a multiple of kRowAlignment.
struct TransposedScaleLayout {
  static constexpr uint32_t kRowAlignment = 4;

  int num_groups;     // per row
  uint32_t max_rows;  // rows the output tensors hold

  SWITCHYARD_HD constexpr uint32_t stride() const { return align_up(max_rows, kRowAlignment); }
  SWITCHYARD_HD constexpr uint64_t index(int group_idx, int64_t row) const {
    return static_cast<uint64_t>(group_idx) * stride() + static_cast<uint64_t>(row);
  }
  constexpr CheckedSize bytes() const {
    return CheckedSize(num_groups) * CheckedSize(stride()) * CheckedSize(sizeof(float));
  }
};

// Scales of one byte in scale tiles of 128 rows by 4 columns. The tiles of the same rows are contiguous;
// columns that pad the last of them are 0.
struct TiledScaleLayout {
  static constexpr int kTileRows = 128;
  static constexpr int kTileColumns = 4;
  static constexpr uint32_t kTileBytes = kTileRows * kTileColumns;

  int num_columns;  // scales per row

  SWITCHYARD_HD constexpr int tiles_across() const { return ceil_div(num_columns, kTileColumns); }
  // The offset of a scale. The scales of columns 4 n to 4 n + 3 are contiguous.
  SWITCHYARD_HD constexpr uint64_t offset(int64_t scale_row, int column) const {
    const uint64_t tile_idx =
        static_cast<uint64_t>(scale_row / kTileRows) * tiles_across() + column / kTileColumns;
    const uint32_t row_in_tile = static_cast<uint32_t>(scale_row % kTileRows);
    return tile_idx * kTileBytes + row_in_tile % 32 * 16 + row_in_tile / 32 * 4 + column % kTileColumns;
  }
  constexpr CheckedSize bytes(uint64_t num_scale_rows) const {
    return CheckedSize(ceil_div<uint64_t>(num_scale_rows, kTileRows)) * CheckedSize(tiles_across()) *
           CheckedSize(kTileBytes);
  }
};

}  // namespace switchyard
