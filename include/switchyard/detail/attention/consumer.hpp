// A consumer of an attention block: a warpgroup with 64 rows of every tile. It starts the scores of a key
// block before the sums of the previous one, so that the matrix unit works while it exponentiates; and
// consumers ping-pong, so that one exponentiates while another multiplies.
#pragma once

#include "switchyard/detail/attention/combine.hpp"
#include "switchyard/detail/attention/kernel_params.hpp"
#include "switchyard/detail/attention/shared.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/attention/warpgroup_math.cuh"
#else
#include "switchyard/detail/attention/host_math.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class AttentionConsumer {
 public:
  // consumer_idx: this warpgroup among the consumers.
  SWITCHYARD_DEVICE AttentionConsumer(const AttentionParams& params, AttentionShared<Config>& shared,
                                      int consumer_idx)
      : settings_(params.settings),
        shared_(shared),
        consumer_idx_(consumer_idx),
        math_(params.settings.scale_log2) {}

  // With two stages of queries a tile's first scores are started before the previous tile's output is stored,
  // and are in flight meanwhile.
  SWITCHYARD_DEVICE void run() {
    if (Config::kPingPongs && consumer_idx_ == Config::kNumConsumers - 1) pass_ping_pong();
    bool is_last = !find_next_tile();
    if constexpr (kStartsEarly) start_scores();
    while (!is_last) {
      tile_idx_ = next_tile_idx();
      if constexpr (!kStartsEarly && Config::kOverlapsBlocks) start_scores();
      queries_.advance();
      note_time(0);
      if constexpr (Config::kOverlapsBlocks)
        attend();
      else
        attend_in_sequence();
      if constexpr (kStartsEarly) {
        is_last = !find_next_tile();
        start_scores();
        math_.template wait_sums<1>();
      } else {
        math_.template wait_sums<0>();
      }
      release_values();
      store();
      note_time(1);
      if constexpr (!kStartsEarly) is_last = !find_next_tile();
    }
    if constexpr (kStartsEarly) math_.template wait_scores<0>();
    if (Config::kPingPongs && consumer_idx_ == 0)
      wait_for_ping_pong();  // the last pass has no other receiver
  }

 private:
  static constexpr bool kStartsEarly = Config::kNumQueryStages > 1 && Config::kOverlapsBlocks;

  // Named barriers: one per consumer for the ping-pong, and one among all.
  static constexpr uint32_t kFirstPingPongBarrier = 1;
  static constexpr uint32_t kConsumersBarrier = kFirstPingPongBarrier + 3;

  SWITCHYARD_DEVICE void wait_for_ping_pong() {
    if constexpr (Config::kPingPongs)
      target::named_barrier_sync(kFirstPingPongBarrier + consumer_idx_, 2 * kWarpgroupThreads);
  }
  SWITCHYARD_DEVICE void pass_ping_pong() {
    if constexpr (Config::kPingPongs) {
      const int next = consumer_idx_ + 1 == Config::kNumConsumers ? 0 : consumer_idx_ + 1;
      target::named_barrier_arrive(kFirstPingPongBarrier + next, 2 * kWarpgroupThreads);
    }
  }
  // release MM-19, MM-21: this warp has read the stage; pairs with the producer's wait before the next load
  // into it
  SWITCHYARD_DEVICE static void release(target::TransferBarrier& empty) {
    target::sync_warp();
    if (target::lane_idx() == 0) empty.arrive();
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

  SWITCHYARD_DEVICE void attend() {
    math_.begin();
    if constexpr (Config::kHasCodes) {
      // A head whose codes are all 0 may have a scale of 0, and 0 x -inf, of a masked score, is NaN.
      constexpr float kLeastScale = 1e-30f;
      const float key_scale = settings_.key_scales[tile(&AttentionTile::kv_head)];
      math_.set_scale(settings_.scale_log2 * (key_scale > kLeastScale ? key_scale : kLeastScale));
    }
    const int first_block = tile(&AttentionTile::first_block);
    const BlocksSeen seen = blocks_seen(tile_idx_);
    int block = seen.end_block - 1, num_keys = seen.num_last_keys;
    math_.template wait_scores<0>();
    cap_scores();
    release_keys();
    if (block == first_block) release_queries();
    pass_over_values(seen);
    if (block >= seen.end_plain_block) mask_end(block);
    if (Config::kIsMasked && block < seen.first_plain_block) mask_begin(block);
    math_.exponentiate();
    math_.take_weights();
    while (--block >= first_block) {
      // acquire MM-20, MM-33: a key block; pairs with load_panels(), or with a converter
      wait_for_phase(shared_.keys_full[keys_.stage()], keys_.parity());
      wait_for_ping_pong();
      math_.start_scores(queries_at(stage_in_use()), shared_.keys[keys_.stage()]);
      math_.shrink_sums();  // while the scores run
      start_sums(num_keys);
      num_keys = Config::kTileKeys;
      pass_ping_pong();
      math_.template wait_scores<1>();
      cap_scores();
      release_keys();
      if (block == first_block) release_queries();
      if (Config::kIsMasked && block >= seen.end_plain_block) mask_end(block);
      if (Config::kIsMasked && block < seen.first_plain_block) mask_begin(block);
      math_.exponentiate();
      math_.template wait_sums<0>();
      release_values();
      math_.take_weights();
    }
    math_.shrink_sums();
    start_sums(num_keys);
  }

  // Attends in sequence: the other consumers of the multiprocessor work meanwhile. The last block's values
  // are not released yet.
  SWITCHYARD_DEVICE void attend_in_sequence() {
    math_.begin();
    const int first_block = tile(&AttentionTile::first_block);
    const BlocksSeen seen = blocks_seen(tile_idx_);
    pass_over_values(seen);
    for (int block = seen.end_block - 1; block >= first_block; --block) {
      // acquire MM-20, MM-33: a key block; pairs with load_panels(), or with a converter
      wait_for_phase(shared_.keys_full[keys_.stage()], keys_.parity());
      math_.start_scores(queries_at(stage_in_use()), shared_.keys[keys_.stage()]);
      math_.template wait_scores<0>();
      cap_scores();
      release_keys();
      if (block == first_block) release_queries();
      if (block >= seen.end_plain_block) mask_end(block);
      if (Config::kIsMasked && block < seen.first_plain_block) mask_begin(block);
      math_.exponentiate();
      math_.take_weights();
      math_.shrink_sums();
      start_sums(Config::kTileKeys);
      if (block == first_block) return;
      math_.template wait_sums<0>();
      release_values();
    }
  }

  // Before masks: a masked score stays minus infinity.
  SWITCHYARD_DEVICE void cap_scores() {
    if constexpr (Config::kAdjustsScores)
      if (settings_.cap_factor > 0) math_.cap_scores(settings_.cap_factor);
  }

  SWITCHYARD_DEVICE unsigned char* queries_at(uint32_t stage) const {
    return shared_.queries[stage] + consumer_idx_ * (kWarpgroupRows * kPanelRowBytes);
  }
  // The stage of the current tile's queries; queries_ is one ahead.
  SWITCHYARD_DEVICE uint32_t stage_in_use() const {
    return Config::kNumQueryStages > 1 ? queries_.stage() ^ 1 : 0;
  }
  SWITCHYARD_DEVICE uint32_t next_tile_idx() const { return tile_idx_ == kNumTiles - 1 ? 0 : tile_idx_ + 1; }
  SWITCHYARD_DEVICE BlocksSeen blocks_seen(uint32_t tile_idx) const {
    return target::ld(&shared_.blocks_seen[tile_idx][consumer_idx_]);
  }
  // Waits for a tile and for the first of its keys that this consumer sees. Returns false if it is the tile
  // that says that no more will come.
  SWITCHYARD_DEVICE bool find_next_tile() {
    // acquire MM-18: the tile and its queries; pairs with the release in the producer's load_queries()
    wait_for_phase(shared_.queries_full[queries_.stage()], queries_.parity());
    const AttentionTile& next = shared_.tiles[next_tile_idx()];
    const int num_unseen = blocks_seen(next_tile_idx()).num_unseen;
    if (target::ld(&next.num_tokens) == 0) return false;
    for (int i = 0; i < num_unseen; ++i) {
      // acquire MM-20, MM-33: a key block; pairs with load_panels(), or with a converter
      wait_for_phase(shared_.keys_full[keys_.stage()], keys_.parity());
      release_keys();
    }
    // acquire MM-20, MM-33: a key block; pairs with load_panels(), or with a converter
    wait_for_phase(shared_.keys_full[keys_.stage()], keys_.parity());
    return true;
  }
  // Starts the next tile's scores unconditionally, on stale data if there is no tile: a conditional wgmma
  // would serialise all of them.
  SWITCHYARD_DEVICE void start_scores() {
    const unsigned char *queries = queries_at(queries_.stage()), *keys = shared_.keys[keys_.stage()];
    if constexpr (Config::kPartKeys == Config::kTileKeys)
      math_.start_scores(queries, keys);
    else
      math_.start_scores_of_part(queries, keys, blocks_seen(tile_idx_).num_last_keys);
  }
  SWITCHYARD_DEVICE void release_queries() { release(shared_.queries_empty[stage_in_use()]); }
  // Starts the sums of at least the block's first num_keys keys.
  SWITCHYARD_DEVICE void start_sums(int num_keys) {
    // acquire MM-20, MM-33: a block of values; pairs with load_panels(), or with a converter
    wait_for_phase(shared_.values_full[values_.stage()], values_.parity());
    math_.start_sums(shared_.values[values_.stage()], num_keys);
  }
  SWITCHYARD_DEVICE void release_keys() {
    release(shared_.keys_empty[keys_.stage()]);
    keys_.advance();
  }
  SWITCHYARD_DEVICE void release_values() {
    release(shared_.values_empty[values_.stage()]);
    values_.advance();
  }
  // Skips the values of the tile's last blocks, whose keys find_next_tile() skipped. The consumer still takes
  // part in the ping-pong, as every consumer does once per block.
  SWITCHYARD_DEVICE void pass_over_values(const BlocksSeen& seen) {
    zero_masked_values(seen.end_block + seen.num_unseen - 1);
    for (int i = 0; i < seen.num_unseen; ++i) {
      wait_for_ping_pong();
      pass_ping_pong();
      // acquire MM-20, MM-33: a block of values; pairs with load_panels(), or with a converter
      wait_for_phase(shared_.values_full[values_.stage()], values_.parity());
      release_values();
    }
  }
  // A sequence's last block holds rows of the next sequence. Their weights are 0, but 0 x NaN is NaN: their
  // values are set to 0 before any consumer uses them.
  SWITCHYARD_DEVICE void zero_masked_values(int block) {
    const int num_left = tile(&AttentionTile::num_keys) - block * Config::kTileKeys;
    if (num_left >= Config::kTileKeys) return;
    const int num_used = num_used_of(num_left);
    if (num_left == num_used) return;
    // acquire MM-20, MM-33: a block of values; pairs with load_panels(), or with a converter
    wait_for_phase(shared_.values_full[values_.stage()], values_.parity());
    constexpr int kNumThreads = Config::kNumConsumers * kWarpgroupThreads, kUnitBytes = sizeof(Vec16);
    const int thread = target::thread_idx() - kWarpgroupThreads;
    for (int panel = 0; panel < Config::kNumPanels; ++panel) {
      unsigned char* rows =
          shared_.values[values_.stage()] + (panel * Config::kTileKeys + num_left) * kPanelRowBytes;
      for (int byte = thread * kUnitBytes; byte < (num_used - num_left) * kPanelRowBytes;
           byte += kNumThreads * kUnitBytes)
        target::st_16(rows + byte, Vec16{});
    }
    target::fence_proxy_async_shared();  // before the matrix unit reads them
    target::named_barrier_sync(kConsumersBarrier, kNumThreads);
  }

  // Returns how many keys the sums of a block with num_keys keys read: whole parts.
  SWITCHYARD_DEVICE static int num_used_of(int num_keys) {
    constexpr int kPart = Config::kPartKeys;
    const int num_used = num_keys <= kPart ? kPart : (num_keys - 1) / kPart * kPart + kPart;
    return num_used < Config::kTileKeys ? num_used : Config::kTileKeys;
  }

  // Masks keys that not all rows of this tile see.
  SWITCHYARD_DEVICE void mask_end(int block) {
    const int num_keys = tile(&AttentionTile::num_keys) - block * Config::kTileKeys;
    if constexpr (!Config::kIsMasked) return math_.mask_from([&](int) { return num_keys; });
    math_.mask_from([&](int row) {
      const int end = position_of(row, block) + settings_.window_right + 1;
      return end < num_keys ? end : num_keys;
    });
  }
  SWITCHYARD_DEVICE void mask_begin(int block) {
    math_.mask_before([&](int row) { return position_of(row, block) - settings_.window_left; });
  }
  // The position of a row of this consumer among the keys, counted from the block's first key.
  SWITCHYARD_DEVICE int position_of(int row, int block) const {
    return tile(&AttentionTile::first_position) + token_of(consumer_idx_ * kWarpgroupRows + row) -
           block * Config::kTileKeys;
  }

  SWITCHYARD_DEVICE int token_of(int row_in_tile) const {
    if constexpr (!Config::kIsDecode) return row_in_tile;
    return row_in_tile / static_cast<int>(settings_.heads_per_tile);
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

  static constexpr float kNoSink = -__builtin_huge_valf();
  SWITCHYARD_DEVICE float sink_of(const OutputRows& rows, int row_in_tile) const {
    const int64_t output_idx = output_idx_of(rows, row_in_tile);
    return output_idx < 0 ? kNoSink : settings_.sinks[output_idx % settings_.num_heads];
  }

  SWITCHYARD_DEVICE void store() {
    const OutputRows rows = output_rows();
    const int first_row = consumer_idx_ * kWarpgroupRows;
    const int64_t num_outputs = static_cast<int64_t>(settings_.num_rows) * settings_.num_heads;
    const uint32_t split = Config::kIsDecode ? tile(&AttentionTile::split_and_count) & 0xffff : 0;
    const bool is_partial = Config::kIsDecode && num_splits_of_tile() > 1;
    float* lse = is_partial ? settings_.partial_lse + split * num_outputs : settings_.lse;
    // Of several splits only their sum has the sink.
    const bool has_sinks = Config::kAdjustsScores && settings_.sinks != nullptr && !is_partial;
    math_.finish(
        [&](int row, float value) {
          const int64_t output_idx = output_idx_of(rows, first_row + row);
          if (lse != nullptr && output_idx >= 0) target::st(&lse[output_idx], value);
        },
        [&](int row) { return has_sinks ? sink_of(rows, first_row + row) : kNoSink; });
    if constexpr (Config::kHasCodes) math_.scale_sums(settings_.value_scales[tile(&AttentionTile::kv_head)]);
    if constexpr (Config::kIsDecode) {
      if (is_partial) {
        math_.store_floats([&](int row) -> float* {
          const int64_t output_idx = output_idx_of(rows, first_row + row);
          return output_idx < 0
                     ? nullptr
                     : settings_.partial_output + (split * num_outputs + output_idx) * Config::kHeadDim;
        });
        if (is_last_split(rows)) combine_splits(rows);
        return;
      }
    }
    const auto output_of = [&](int row) -> bf16* {
      const int64_t output_idx = output_idx_of(rows, first_row + row);
      return output_idx < 0 ? nullptr : settings_.output + output_idx * Config::kHeadDim;
    };
    if constexpr (Config::kStagesOutput) {
      const int first_of_warp = first_row + target::thread_idx() % kWarpgroupThreads / kWarpSize * 16;
      const int64_t stride = static_cast<int64_t>(settings_.num_heads) * Config::kHeadDim;
      math_.store_rows_through(
          shared_.output[first_of_warp],
          settings_.output + rows.first_output_idx * Config::kHeadDim + first_of_warp * stride, stride,
          rows.num_tokens - first_of_warp);
    } else {
      math_.store_rows_of(output_of);
    }
  }

  // How many splits of the sequence have keys.
  SWITCHYARD_DEVICE uint32_t num_splits_of_tile() const {
    return tile(&AttentionTile::split_and_count) >> 16;
  }
  // Counts the split, whose results this warpgroup has stored. Returns whether all others have been counted.
  SWITCHYARD_DEVICE bool is_last_split(const OutputRows& rows) {
    const uint32_t last = num_splits_of_tile() - 1;
    uint32_t* is_last = &shared_.is_last_split;
    target::named_barrier_sync(kConsumersBarrier, kWarpgroupThreads);
    if (target::thread_idx() % kWarpgroupThreads == 0) {
      uint32_t* num_done = &settings_.num_splits_done[rows.first_output_idx];
      // acq_rel MM-30: this split's output and lse, to the warpgroup that counts the last one
      target::st(is_last, uint32_t{target::atomic_inc_wrap_acq_rel_device(num_done, last) == last});
    }
    target::named_barrier_sync(kConsumersBarrier, kWarpgroupThreads);
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
    for (int row = target::thread_idx() % kWarpgroupThreads / kWarpSize; row < num_rows;
         row += kWarpgroupThreads / kWarpSize)
      combine_row<Config::kHeadDim>(
          splits, static_cast<uint32_t>(output_idx_of(rows, row)),
          Config::kAdjustsScores && settings_.sinks != nullptr ? sink_of(rows, row) : kNoSink);
  }

  const AttentionSettings& settings_;
  AttentionShared<Config>& shared_;
  const int consumer_idx_;
  WarpgroupMath<Config> math_;
  StageCursor<Config::kNumQueryStages> queries_;
  uint32_t tile_idx_ = kNumTiles - 1;  // of the current tile
  StageCursor<Config::kNumKeyStages> keys_, values_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
