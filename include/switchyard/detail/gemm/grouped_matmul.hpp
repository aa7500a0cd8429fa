// A plain grouped matmul over the ragged rows that dispatch writes: rows [row_offsets[g], row_offsets[g + 1])
// are multiplied by the weights of expert_ids[g]. Sums run over k in order, in fp32, without fma, which gives
// the same bits on every target.
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/gemm/params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// What one thread computes at a time: some rows and columns of the output, several values of k at once. On a
// GPU the sums stay in registers, and neighbouring lanes share the lines of the weights. On the host a thread
// has the cache to itself: it loads whole lines of weights, and unpacks them once for all its rows.
inline constexpr int kPackedColumns = 8;  // of a Vec16
#if defined(__CUDACC__)
inline constexpr int kTileRows = 4, kTileColumns = kPackedColumns, kTileDepth = 1;
#else
inline constexpr int kTileRows = 64, kTileColumns = 4 * kPackedColumns, kTileDepth = 32;
#endif

SWITCHYARD_DEVICE void unpack_bf16(const Vec16& packed, float* values) {
  for (int i = 0; i < kPackedColumns; ++i)
    values[i] = to_float(bf16{static_cast<uint16_t>(packed.words[i / 2] >> (i % 2 * 16))});
}

SWITCHYARD_WIDE SWITCHYARD_DEVICE void multiply_tile(const GroupedMatmulParams& params, int64_t first_row,
                                                     int num_rows, const bf16* weights, int first_column) {
  float sums[kTileRows][kTileColumns];
  // All loops have fixed lengths: a tile of one Vec16 has all its columns, and its rows past the end repeat
  // the last row.
  constexpr bool kFixed = kTileColumns == kPackedColumns;
  const int columns_left = params.columns - first_column;
  const int num_columns = kFixed || columns_left > kTileColumns ? kTileColumns : columns_left;
  const int num_summed_rows = kFixed ? kTileRows : num_rows;
  const bf16* row[kTileRows];
  for (int r = 0; r < num_summed_rows; ++r) {
    row[r] = params.rows + (first_row + (r < num_rows ? r : num_rows - 1)) * params.inner;
    for (int c = 0; c < kTileColumns; ++c) sums[r][c] = 0.0f;
  }
  float weight[kTileDepth][kTileColumns] = {};
  for (int first_k = 0; first_k < params.inner; first_k += kTileDepth) {
    const int depth_left = params.inner - first_k;
    const int depth = kFixed || depth_left > kTileDepth ? kTileDepth : depth_left;
    for (int k = 0; k < depth; ++k)
      for (int c = 0; c < num_columns; c += kPackedColumns)
        unpack_bf16(
            target::ld_16(weights + static_cast<int64_t>(first_k + k) * params.columns + first_column + c),
            &weight[k][c]);
    for (int r = 0; r < num_summed_rows; ++r) {
      float sum[kTileColumns];  // compilers optimise sums better whose address is not taken outside
      for (int c = 0; c < kTileColumns; ++c) sum[c] = sums[r][c];
      for (int k = 0; k < depth; ++k) {
        const float value = to_float(row[r][first_k + k]);
        for (int c = 0; c < kTileColumns; ++c) sum[c] = target::add_product(sum[c], value, weight[k][c]);
      }
      for (int c = 0; c < kTileColumns; ++c) sums[r][c] = sum[c];
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= num_rows) break;
    bf16* out = params.output + (first_row + r) * params.columns + first_column;
    for (int c = 0; c < num_columns; ++c) out[c] = to_bf16(sums[r][c]);
  }
}

SWITCHYARD_KERNEL void grouped_matmul_kernel(GroupedMatmulParams params) {
  // Warps are numbered across the blocks, so that even a few tiles are spread over many blocks.
  const int64_t warp = static_cast<int64_t>(target::warp_idx()) * target::num_blocks() + target::block_idx();
  const int64_t thread = warp * kWarpSize + target::lane_idx();
  const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
  const int64_t num_column_tiles = ceil_div<int64_t>(params.columns, kTileColumns);
  int64_t tiles_before = 0;  // the tiles of earlier groups, so that all groups share the threads evenly
  for (int group_idx = 0; group_idx < params.num_groups; ++group_idx) {
    const int64_t group_begin = params.row_offsets[group_idx];
    const int64_t num_rows = params.row_counts != nullptr ? params.row_counts[group_idx]
                                                          : params.row_offsets[group_idx + 1] - group_begin;
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
