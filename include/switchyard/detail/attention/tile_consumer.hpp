// What the consumers of all attention kernels share: the tile that they work on, where its rows go, and the
// splits of a sequence's keys.
#pragma once

#include "switchyard/detail/attention/combine.hpp"
#include "switchyard/detail/attention/kernel_params.hpp"
#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, typename Shared>
class TileConsumer {
 protected:
  SWITCHYARD_DEVICE TileConsumer(const AttentionParams& params, Shared& shared)
      : settings_(params.settings), shared_(shared) {}

  static constexpr int kNumConsumerThreads = Config::kNumConsumers * kWarpgroupThreads;
  // Named barriers: one among all consumers, and others before it that a kernel may use.
  static constexpr uint32_t kFirstBarrier = 1, kConsumersBarrier = kFirstBarrier + 3;
  static constexpr float kNoSink = -__builtin_huge_valf();

  // release MM-19, MM-21, MM-31, MM-32: this warp has read, or written, what the barrier guards; pairs with
  // the wait of the producer, or of another consumer, before it overwrites, or reads, that
  SWITCHYARD_DEVICE static void release(target::TransferBarrier& barrier) {
    target::sync_warp();
    if (target::lane_idx() == 0) barrier.arrive();
  }

  // Notes when this block began a tile, or had stored it, if the caller wants tile_times.
  SWITCHYARD_DEVICE void note_time(int which) const {
    if (settings_.tile_times == nullptr || target::thread_idx() != kWarpgroupThreads) return;
    uint64_t* times = settings_.tile_times + uint64_t{tile(&AttentionTile::grid_idx)} * 3;
    target::st(&times[which], target::now_ns());
    target::st(&times[2], static_cast<uint64_t>(target::block_idx()));
  }

  // The field is read again wherever it is needed: registers are scarce.
  template <typename T>
  SWITCHYARD_DEVICE T tile(T AttentionTile::*field) const {
    return target::ld(&(shared_.tiles[tile_idx_].*field));
  }
  SWITCHYARD_DEVICE uint32_t next_tile_idx() const { return tile_idx_ == kNumTiles - 1 ? 0 : tile_idx_ + 1; }

  // Rows are [token][head].
  SWITCHYARD_DEVICE int token_of(int row_in_tile) const {
    if constexpr (!Config::kIsDecode) return row_in_tile;
    return row_in_tile / static_cast<int>(settings_.heads_per_tile);
  }
  // The position of a row among the keys, counted from the block's first key.
  SWITCHYARD_DEVICE int position_of(int row_in_tile, int block) const {
    return tile(&AttentionTile::first_position) + token_of(row_in_tile) - block * Config::kTileKeys;
  }
  // The first key of a block that a row does not see, and the first that it sees.
  SWITCHYARD_DEVICE int end_of_keys(int row_in_tile, int block) const {
    const int num_keys = tile(&AttentionTile::num_keys) - block * Config::kTileKeys;
    const int end = position_of(row_in_tile, block) + settings_.window_right + 1;
    return end < num_keys ? end : num_keys;
  }
  SWITCHYARD_DEVICE int first_of_keys(int row_in_tile, int block) const {
    return position_of(row_in_tile, block) - settings_.window_left;
  }

  // Where the rows of the current tile go, read once: reading shared memory for each of them is slow.
  struct OutputRows {
    int64_t first_output_idx;  // of the tile's first row among all rows and heads
    int num_tokens;
  };
  SWITCHYARD_DEVICE OutputRows output_rows() const {
    return {static_cast<int64_t>(tile(&AttentionTile::first_row)) * settings_.num_heads +
                tile(&AttentionTile::first_head),
            static_cast<int>(tile(&AttentionTile::num_tokens))};
  }
  // The index of a row of the tile among all rows and heads of the output; -1 if there is no such row.
  SWITCHYARD_DEVICE int64_t output_idx_of(const OutputRows& rows, int row_in_tile) const {
    const int token = token_of(row_in_tile);
    if (token >= rows.num_tokens) return -1;
    const int64_t output_idx = rows.first_output_idx + static_cast<int64_t>(token) * settings_.num_heads;
    if constexpr (!Config::kIsDecode) return output_idx;
    return output_idx + row_in_tile % static_cast<int>(settings_.heads_per_tile);
  }
  // Where a row begins, of all outputs that begin at `first`; null if there is no such row.
  template <int kColumns, typename T>
  SWITCHYARD_DEVICE T* place_of(T* first, const OutputRows& rows, int row_in_tile) const {
    const int64_t output_idx = output_idx_of(rows, row_in_tile);
    return output_idx < 0 ? nullptr : first + output_idx * kColumns;
  }
  SWITCHYARD_DEVICE float sink_of(const OutputRows& rows, int row_in_tile) const {
    const int64_t output_idx = output_idx_of(rows, row_in_tile);
    return output_idx < 0 ? kNoSink : settings_.sinks[output_idx % settings_.num_heads];
  }
  SWITCHYARD_DEVICE bool has_sinks() const { return Config::kAdjustsScores && settings_.sinks != nullptr; }

  // How many splits of the sequence have keys.
  SWITCHYARD_DEVICE uint32_t num_splits_of_tile() const {
    return tile(&AttentionTile::split_and_count) >> 16;
  }
  // The first of the outputs of this tile's split.
  SWITCHYARD_DEVICE int64_t first_of_split() const {
    return static_cast<int64_t>(settings_.num_rows) * settings_.num_heads *
           (tile(&AttentionTile::split_and_count) & 0xffff);
  }
  // Combines the splits if this one, whose results the consumers have stored, is the last: a warp for a row.
  template <int kColumns>
  SWITCHYARD_DEVICE void combine_if_last(const OutputRows& rows) {
    if (!is_last_split(rows)) return;
    const SplitResults splits{.partial_output = settings_.partial_output,
                              .partial_lse = settings_.partial_lse,
                              .output = settings_.output,
                              .lse = settings_.lse,
                              .num_splits = num_splits_of_tile(),
                              .num_outputs = settings_.num_rows * settings_.num_heads};
    const int num_rows = rows.num_tokens * static_cast<int>(settings_.heads_per_tile);
    for (int row = target::warp_idx() - kWarpgroupThreads / kWarpSize; row < num_rows;
         row += kNumConsumerThreads / kWarpSize)
      combine_row<kColumns>(splits, static_cast<uint32_t>(output_idx_of(rows, row)),
                            has_sinks() ? sink_of(rows, row) : kNoSink);
  }
  // Counts the split. Returns whether all others have been counted.
  SWITCHYARD_DEVICE bool is_last_split(const OutputRows& rows) {
    const uint32_t last = num_splits_of_tile() - 1;
    uint32_t* is_last = &shared_.is_last_split;
    target::named_barrier_sync(kConsumersBarrier, kNumConsumerThreads);
    if (target::thread_idx() == kWarpgroupThreads) {
      uint32_t* num_done = &settings_.num_splits_done[rows.first_output_idx];
      // acq_rel MM-30: this split's output and lse, to the block that counts the last one
      target::st(is_last, uint32_t{target::atomic_inc_wrap_acq_rel_device(num_done, last) == last});
    }
    target::named_barrier_sync(kConsumersBarrier, kNumConsumerThreads);
    return target::ld(is_last) != 0;
  }

  const AttentionSettings& settings_;
  Shared& shared_;
  uint32_t tile_idx_ = kNumTiles - 1;  // of the current tile
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
