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

// uint32 [hidden / 512, rounded up][stride]: the scales, of one byte, of four neighbouring scale groups of a
// row in a word, the first in the lowest byte; bytes that pad the last word are 0. The words of a column are
// contiguous, and those of each expert start at a multiple of 16 bytes, as in TransposedScaleLayout.
struct PackedScaleLayout {
  static constexpr uint32_t kRowAlignment = 4;
  static constexpr int kScalesPerWord = 4;

  int num_groups;     // per row
  uint32_t max_rows;  // rows the output tensors hold

  SWITCHYARD_HD constexpr uint32_t stride() const { return align_up(max_rows, kRowAlignment); }
  SWITCHYARD_HD constexpr int num_words() const { return ceil_div(num_groups, kScalesPerWord); }
  SWITCHYARD_HD constexpr uint64_t word_index(int word_idx, int64_t row) const {
    return static_cast<uint64_t>(word_idx) * stride() + static_cast<uint64_t>(row);
  }
  // Of a scale, in bytes.
  SWITCHYARD_HD constexpr uint64_t offset(int group_idx, int64_t row) const {
    return word_index(group_idx / kScalesPerWord, row) * sizeof(uint32_t) +
           static_cast<uint64_t>(group_idx % kScalesPerWord);
  }
  // The bytes of a word that hold scales.
  SWITCHYARD_HD constexpr uint32_t mask(int word_idx) const {
    const int num_scales = num_groups - word_idx * kScalesPerWord;
    return num_scales >= kScalesPerWord ? UINT32_MAX : (1u << (8 * num_scales)) - 1;
  }
  constexpr CheckedSize bytes() const {
    return CheckedSize(num_words()) * CheckedSize(stride()) * CheckedSize(sizeof(uint32_t));
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
