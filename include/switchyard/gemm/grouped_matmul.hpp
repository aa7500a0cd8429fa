// A plain grouped matmul over the ragged rows dispatch makes: group g takes rows [row_offsets[g],
// row_offsets[g + 1]) times the weights of expert_ids[g]. Sums run over k in order, in fp32, without fma: the
// same bits on every target.
#pragma once

#include "switchyard/base/checked.hpp"
#include "switchyard/gemm/params.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// What one thread computes at a time.
inline constexpr int kTileRows = 4;
inline constexpr int kTileColumns = 8;

SWITCHYARD_DEVICE void unpack_bf16(const Vec16& packed, float (&values)[kTileColumns]) {
  for (int i = 0; i < kTileColumns; ++i)
    values[i] = to_float(bf16{static_cast<uint16_t>(packed.words[i / 2] >> (i % 2 * 16))});
}

SWITCHYARD_DEVICE void multiply_tile(const GroupedMatmulParams& params, int64_t first_row, int num_rows,
                                     const bf16* weights, int column) {
  float sums[kTileRows][kTileColumns] = {};
  const bf16* row[kTileRows];  // rows past the end repeat the last one and are not stored
  for (int r = 0; r < kTileRows; ++r)
    row[r] = params.rows + (first_row + (r < num_rows ? r : num_rows - 1)) * params.inner;
  for (int k = 0; k < params.inner; ++k) {
    float weight[kTileColumns];
    unpack_bf16(target::ld_16(weights + static_cast<int64_t>(k) * params.columns + column), weight);
    for (int r = 0; r < kTileRows; ++r) {
      const float value = to_float(row[r][k]);
      for (int c = 0; c < kTileColumns; ++c) sums[r][c] = target::add_product(sums[r][c], value, weight[c]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= num_rows) break;
    bf16* out = params.output + (first_row + r) * params.columns + column;
    for (int c = 0; c < kTileColumns; ++c) out[c] = to_bf16(sums[r][c]);
  }
}

SWITCHYARD_KERNEL void grouped_matmul_kernel(GroupedMatmulParams params) {
  const int64_t thread =
      static_cast<int64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
  const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
  const int64_t num_column_tiles = params.columns / kTileColumns;
  int64_t tiles_before = 0;  // of earlier groups, so that all groups share the threads evenly
  for (int group_idx = 0; group_idx < params.num_groups; ++group_idx) {
    const int64_t group_begin = params.row_offsets[group_idx];
    const int64_t num_rows = params.row_offsets[group_idx + 1] - group_begin;
    const int64_t num_tiles = ceil_div<int64_t>(num_rows, kTileRows) * num_column_tiles;
    const bf16* weights =
        params.weights + static_cast<int64_t>(params.expert_ids[group_idx]) * params.inner * params.columns;
    for (int64_t tile = (thread + num_threads - tiles_before % num_threads) % num_threads; tile < num_tiles;
         tile += num_threads) {
      const int64_t row_in_group = tile / num_column_tiles * kTileRows;
      const int64_t rows_left = num_rows - row_in_group;
      multiply_tile(params, group_begin + row_in_group,
                    static_cast<int>(rows_left < kTileRows ? rows_left : kTileRows), weights,
                    static_cast<int>(tile % num_column_tiles) * kTileColumns);
    }
    tiles_before += num_tiles;
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
