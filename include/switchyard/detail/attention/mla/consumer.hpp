// A consumer of an MLA block. Both consumers have the same 64 rows, and half of the output's columns each.
// The first computes scores and weights and hands the weights to the second; it starts the scores of the next
// key block behind its own sums, so that the matrix unit works while weights are handed over.
#pragma once

#include "switchyard/detail/attention/combine.hpp"
#include "switchyard/detail/attention/kernel_params.hpp"
#include "switchyard/detail/attention/mla/shared.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/attention/mla/warpgroup_math.cuh"
#else
#include "switchyard/detail/attention/mla/host_math.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

// kConsumerIdx: this warpgroup among the consumers. Each has code of its own: were the first one's products
// in a branch of what both execute, the assembler would serialise them.
template <typename Config, int kConsumerIdx>
class MlaConsumer {
 public:
  SWITCHYARD_DEVICE MlaConsumer(const AttentionParams& params, MlaShared<Config>& shared)
      : settings_(params.settings), shared_(shared), math_(params.settings.scale_log2) {}

  SWITCHYARD_DEVICE void run() {
    while (find_next_tile()) {
      note_time(0);
      math_.begin();
      if constexpr (kConsumerIdx == 0)
        attend();
      else
        follow();
      store();
      note_time(1);
    }
  }

 private:
  static constexpr uint32_t kScorerBarrier = 1, kConsumersBarrier = 2;  // named barriers

  // release MM-19, MM-21, MM-31, MM-32: this warp has read, or written, what the barrier guards
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

  // Waits for a tile and its queries. Returns false if it is the tile that says that no more will come.
  SWITCHYARD_DEVICE bool find_next_tile() {
    // acquire MM-18: the tile and its queries; pairs with the release in the producer's load_queries()
    wait_for_phase(shared_.queries_full[0], queries_.parity());
    queries_.advance();
    tile_idx_ = tile_idx_ == kNumTiles - 1 ? 0 : tile_idx_ + 1;
    if (tile(&AttentionTile::num_tokens) == 0) return false;
    if constexpr (kConsumerIdx != 0) release(shared_.queries_empty[0]);  // which this consumer does not read
    return true;
  }

  // The first consumer: scores, weights, and the sums of the left strip.
  SWITCHYARD_DEVICE void attend() {
    const int first_block = tile(&AttentionTile::first_block);
    const BlocksSeen seen = target::ld(&shared_.blocks_seen[tile_idx_][0]);
    int block = tile(&AttentionTile::end_block) - 1;
    zero_masked_values(block);
    start_scores();
    math_.template wait_scores<0>();
    weigh(block, first_block, seen);
    while (--block >= first_block) {
      const uint32_t stage = latents_.stage();
      start_sums(stage, Config::kLeft);
      latents_.advance();
      start_scores();
      math_.template wait_sums<1>();
      release(shared_.latents_empty[stage][Config::kLeft]);
      math_.template wait_scores<0>();
      weigh(block, first_block, seen);
    }
    start_sums(latents_.stage(), Config::kLeft);
    finish_sums(Config::kLeft);
    hand_over([&] { math_.publish_sums(shared_); });
  }
  // Turns the scores of a block into weights, for both consumers.
  SWITCHYARD_DEVICE void weigh(int block, int first_block, const BlocksSeen& seen) {
    if (block == first_block) release(shared_.queries_empty[0]);
    release(shared_.latents_empty[latents_.stage()][Config::kRest]);
    if (block >= seen.end_plain_block) mask_end(block);
    if (block < seen.first_plain_block) mask_begin(block);
    math_.exponentiate();
    math_.take_weights();
    hand_over([&] { math_.publish_weights(shared_); });
  }

  // The second consumer: the sums of the right strip, with the weights of the first.
  SWITCHYARD_DEVICE void follow() {
    const int num_blocks = tile(&AttentionTile::end_block) - tile(&AttentionTile::first_block);
    for (int i = 0; i < num_blocks; ++i) {
      take_over([&] { math_.receive_weights(shared_); });
      wait_for_strip(latents_.stage(), Config::kRight);
      start_sums(latents_.stage(), Config::kRight);
      finish_sums(Config::kRight);
    }
    take_over([&] { math_.receive_sums(shared_); });
  }

  template <typename Publish>
  SWITCHYARD_DEVICE void hand_over(Publish publish) {
    // acquire MM-32: the other consumer has read what was published before; pairs with its take_over()
    wait_for_phase(shared_.weights_empty, weights_.parity() ^ 1);
    publish();
    // release MM-31: weights or sums; pairs with the other consumer's take_over()
    release(shared_.weights_full);
    weights_.advance();
  }
  template <typename Receive>
  SWITCHYARD_DEVICE void take_over(Receive receive) {
    // acquire MM-31: weights or sums; pairs with the first consumer's hand_over()
    wait_for_phase(shared_.weights_full, weights_.parity());
    receive();
    // release MM-32: they have been read; pairs with the first consumer's hand_over()
    release(shared_.weights_empty);
    weights_.advance();
  }

  SWITCHYARD_DEVICE void wait_for_strip(uint32_t stage, int strip) {
    // acquire MM-20: columns of a key block; pairs with the release in the producer's load_panels()
    wait_for_phase(shared_.latents_full[stage][strip], latents_.parity());
  }
  SWITCHYARD_DEVICE void start_scores() {
    const uint32_t stage = latents_.stage();
    math_.start_scores_of(shared_.queries[0], shared_.latents[stage],
                          [&](int strip) { wait_for_strip(stage, strip); });
  }
  SWITCHYARD_DEVICE void start_sums(uint32_t stage, int strip) {
    math_.shrink_sums();
    math_.start_sums(
        shared_.latents[stage] + Config::panels_of(strip).first_panel * (Config::kTileKeys * kPanelRowBytes),
        Config::kTileKeys);
  }
  SWITCHYARD_DEVICE void finish_sums(int strip) {
    math_.template wait_sums<0>();
    release(shared_.latents_empty[latents_.stage()][strip]);
    latents_.advance();
  }

  // A sequence's last block holds rows of no key, or of another's. Their weights are 0, but 0 x NaN is NaN:
  // they are set to 0 before either consumer uses them.
  SWITCHYARD_DEVICE void zero_masked_values(int block) {
    const int num_left = tile(&AttentionTile::num_keys) - block * Config::kTileKeys;
    if (num_left >= Config::kTileKeys) return;
    const uint32_t stage = latents_.stage();
    wait_for_strip(stage, Config::kLeft);
    wait_for_strip(stage, Config::kRight);
    constexpr int kUnitBytes = sizeof(Vec16);
    const int first_byte = target::thread_idx() % kWarpgroupThreads * kUnitBytes;
    for (int panel = 0; panel < 2 * Config::kValuePanels; ++panel) {
      unsigned char* rows = shared_.latents[stage] + (panel * Config::kTileKeys + num_left) * kPanelRowBytes;
      for (int byte = first_byte; byte < (Config::kTileKeys - num_left) * kPanelRowBytes;
           byte += kWarpgroupThreads * kUnitBytes)
        target::st_16(rows + byte, Vec16{});
    }
    target::fence_proxy_async_shared();  // before the matrix unit reads them
    target::named_barrier_sync(kScorerBarrier, kWarpgroupThreads);
  }

  // Masks keys that not all rows of this tile see.
  SWITCHYARD_DEVICE void mask_end(int block) {
    const int num_keys = tile(&AttentionTile::num_keys) - block * Config::kTileKeys;
    math_.mask_from([&](int row) {
      const int end = position_of(row, block) + settings_.window_right + 1;
      return end < num_keys ? end : num_keys;
    });
  }
  SWITCHYARD_DEVICE void mask_begin(int block) {
    math_.mask_before([&](int row) { return position_of(row, block) - settings_.window_left; });
  }
  // The position of a row among the keys, counted from the block's first key.
  SWITCHYARD_DEVICE int position_of(int row, int block) const {
    return tile(&AttentionTile::first_position) + token_of(row) - block * Config::kTileKeys;
  }
  SWITCHYARD_DEVICE int token_of(int row) const { return row / static_cast<int>(settings_.heads_per_tile); }

  // Where the rows of the current tile go.
  struct OutputRows {
    int64_t first_output_idx;  // of the tile's first row among all rows and heads
    int num_tokens;
  };
  // The index of a row of the tile among all rows and heads of the output; -1 if there is no such row.
  SWITCHYARD_DEVICE int64_t output_idx_of(const OutputRows& rows, int row) const {
    const int token = token_of(row);
    if (token >= rows.num_tokens) return -1;
    return rows.first_output_idx + static_cast<int64_t>(token) * settings_.num_heads +
           row % static_cast<int>(settings_.heads_per_tile);
  }

  SWITCHYARD_DEVICE void store() {
    const OutputRows rows{static_cast<int64_t>(tile(&AttentionTile::first_row)) * settings_.num_heads +
                              tile(&AttentionTile::first_head),
                          static_cast<int>(tile(&AttentionTile::num_tokens))};
    const int64_t num_outputs = static_cast<int64_t>(settings_.num_rows) * settings_.num_heads;
    const int64_t first_of_split = (tile(&AttentionTile::split_and_count) & 0xffff) * num_outputs;
    const bool is_partial = num_splits_of_tile() > 1;
    float* lse = is_partial ? settings_.partial_lse + first_of_split : settings_.lse;
    math_.finish(
        [&](int row, float value) {
          const int64_t output_idx = output_idx_of(rows, row);
          if (kConsumerIdx == 0 && lse != nullptr && output_idx >= 0) target::st(&lse[output_idx], value);
        },
        [](int) { return kNoSink; });
    const int first_column = kConsumerIdx * Config::kHeadDim;
    const auto place_of = [&](auto* base, int64_t first, int row) {
      const int64_t output_idx = output_idx_of(rows, row);
      return output_idx < 0 ? nullptr : base + (first + output_idx) * Config::kValueDim + first_column;
    };
    if (!is_partial)
      return math_.store_rows_of([&](int row) -> bf16* { return place_of(settings_.output, 0, row); });
    math_.store_floats(
        [&](int row) -> float* { return place_of(settings_.partial_output, first_of_split, row); });
    if (is_last_split(rows)) combine_splits(rows);
  }

  // How many splits of the sequence have keys.
  SWITCHYARD_DEVICE uint32_t num_splits_of_tile() const {
    return tile(&AttentionTile::split_and_count) >> 16;
  }
  // Counts the split, whose results both consumers have stored. Returns whether all others have been counted.
  SWITCHYARD_DEVICE bool is_last_split(const OutputRows& rows) {
    constexpr uint32_t kNumThreads = Config::kNumConsumers * kWarpgroupThreads;
    const uint32_t last = num_splits_of_tile() - 1;
    uint32_t* is_last = &shared_.is_last_split;
    target::named_barrier_sync(kConsumersBarrier, kNumThreads);
    if (target::thread_idx() == kWarpgroupThreads) {
      uint32_t* num_done = &settings_.num_splits_done[rows.first_output_idx];
      // acq_rel MM-30: this split's output and lse, to the block that counts the last one
      target::st(is_last, uint32_t{target::atomic_inc_wrap_acq_rel_device(num_done, last) == last});
    }
    target::named_barrier_sync(kConsumersBarrier, kNumThreads);
    return target::ld(is_last) != 0;
  }
  // A warp combines a row.
  SWITCHYARD_DEVICE void combine_splits(const OutputRows& rows) const {
    const SplitResults splits{.partial_output = settings_.partial_output,
                              .partial_lse = settings_.partial_lse,
                              .output = settings_.output,
                              .lse = settings_.lse,
                              .num_splits = num_splits_of_tile(),
                              .num_outputs = settings_.num_rows * settings_.num_heads};
    const int num_rows = rows.num_tokens * static_cast<int>(settings_.heads_per_tile);
    for (int row = target::warp_idx() - kWarpgroupThreads / kWarpSize; row < num_rows;
         row += Config::kNumConsumers * kWarpgroupThreads / kWarpSize)
      combine_row<Config::kValueDim>(splits, static_cast<uint32_t>(output_idx_of(rows, row)), kNoSink);
  }

  static constexpr float kNoSink = -__builtin_huge_valf();

  const AttentionSettings& settings_;
  MlaShared<Config>& shared_;
  MlaMath<Config> math_;
  StageCursor<1> queries_, weights_;
  uint32_t tile_idx_ = kNumTiles - 1;  // of the current tile
  StageCursor<Config::kNumKeyStages> latents_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
