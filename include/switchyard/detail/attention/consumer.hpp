// A consumer of an attention block: a warpgroup with 64 rows of every tile. It starts the scores of a key
// block before the sums of the previous one, so that the matrix unit works while it exponentiates; and
// consumers ping-pong, so that one exponentiates while another multiplies.
#pragma once

#include "switchyard/detail/attention/tile_consumer.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/attention/warpgroup_math.cuh"
#else
#include "switchyard/detail/attention/host_math.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class AttentionConsumer : private TileConsumer<Config, AttentionShared<Config>> {
  using Base = TileConsumer<Config, AttentionShared<Config>>;
  using Base::settings_, Base::shared_, Base::tile, Base::tile_idx_, Base::release, Base::next_tile_idx;
  using typename Base::OutputRows;

 public:
  // consumer_idx: this warpgroup among the consumers.
  SWITCHYARD_DEVICE AttentionConsumer(const AttentionParams& params, AttentionShared<Config>& shared,
                                      int consumer_idx)
      : Base(params, shared), consumer_idx_(consumer_idx), math_(params.settings.scale_log2) {}

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
      this->note_time(0);
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
      this->note_time(1);
      if constexpr (!kStartsEarly) is_last = !find_next_tile();
    }
    if constexpr (kStartsEarly) math_.template wait_scores<0>();
    if (Config::kPingPongs && consumer_idx_ == 0)
      wait_for_ping_pong();  // the last pass has no other receiver
  }

 private:
  static constexpr bool kStartsEarly = Config::kNumQueryStages > 1 && Config::kOverlapsBlocks;

  SWITCHYARD_DEVICE void wait_for_ping_pong() {
    if constexpr (Config::kPingPongs)
      target::named_barrier_sync(Base::kFirstBarrier + consumer_idx_, 2 * kWarpgroupThreads);
  }
  SWITCHYARD_DEVICE void pass_ping_pong() {
    if constexpr (Config::kPingPongs) {
      const int next = consumer_idx_ + 1 == Config::kNumConsumers ? 0 : consumer_idx_ + 1;
      target::named_barrier_arrive(Base::kFirstBarrier + next, 2 * kWarpgroupThreads);
    }
  }
  SWITCHYARD_DEVICE void attend() {
    math_.begin();
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
      // acquire MM-20: a key block; pairs with the release in the producer's load_panels()
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
      // acquire MM-20: a key block; pairs with the release in the producer's load_panels()
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
      // acquire MM-20: a key block; pairs with the release in the producer's load_panels()
      wait_for_phase(shared_.keys_full[keys_.stage()], keys_.parity());
      release_keys();
    }
    // acquire MM-20: a key block; pairs with the release in the producer's load_panels()
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
    // acquire MM-20: a block of values; pairs with the release in the producer's load_panels()
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
      // acquire MM-20: a block of values; pairs with the release in the producer's load_panels()
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
    // acquire MM-20: a block of values; pairs with the release in the producer's load_panels()
    wait_for_phase(shared_.values_full[values_.stage()], values_.parity());
    constexpr int kNumThreads = Base::kNumConsumerThreads, kUnitBytes = sizeof(Vec16);
    const int thread = target::thread_idx() - kWarpgroupThreads;
    for (int panel = 0; panel < Config::kNumPanels; ++panel) {
      unsigned char* rows =
          shared_.values[values_.stage()] + (panel * Config::kTileKeys + num_left) * kPanelRowBytes;
      for (int byte = thread * kUnitBytes; byte < (num_used - num_left) * kPanelRowBytes;
           byte += kNumThreads * kUnitBytes)
        target::st_16(rows + byte, Vec16{});
    }
    target::fence_proxy_async_shared();  // before the matrix unit reads them
    target::named_barrier_sync(Base::kConsumersBarrier, kNumThreads);
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
    math_.mask_from(
        [&](int row) { return this->end_of_keys(consumer_idx_ * kWarpgroupRows + row, block); });
  }
  SWITCHYARD_DEVICE void mask_begin(int block) {
    math_.mask_before(
        [&](int row) { return this->first_of_keys(consumer_idx_ * kWarpgroupRows + row, block); });
  }

  SWITCHYARD_DEVICE void store() {
    const OutputRows rows = this->output_rows();
    const int first_row = consumer_idx_ * kWarpgroupRows;
    const bool is_partial = Config::kIsDecode && this->num_splits_of_tile() > 1;
    const int64_t first = is_partial ? this->first_of_split() : 0;
    float* lse = is_partial ? settings_.partial_lse + first : settings_.lse;
    // Of several splits only their sum has the sink.
    const bool has_sinks = this->has_sinks() && !is_partial;
    math_.finish(
        [&](int row, float value) {
          const int64_t output_idx = this->output_idx_of(rows, first_row + row);
          if (lse != nullptr && output_idx >= 0) target::st(&lse[output_idx], value);
        },
        [&](int row) { return has_sinks ? this->sink_of(rows, first_row + row) : Base::kNoSink; });
    if constexpr (Config::kIsDecode) {
      if (is_partial) {
        math_.store_floats([&](int row) {
          return this->template place_of<Config::kHeadDim>(
              settings_.partial_output + first * Config::kHeadDim, rows, first_row + row);
        });
        return this->template combine_if_last<Config::kHeadDim>(rows);
      }
    }
    if constexpr (Config::kStagesOutput) {
      const int first_of_warp = first_row + target::thread_idx() % kWarpgroupThreads / kWarpSize * 16;
      const int64_t stride = static_cast<int64_t>(settings_.num_heads) * Config::kHeadDim;
      math_.store_rows_through(
          shared_.output[first_of_warp],
          settings_.output + rows.first_output_idx * Config::kHeadDim + first_of_warp * stride, stride,
          rows.num_tokens - first_of_warp);
    } else {
      math_.store_rows_of([&](int row) {
        return this->template place_of<Config::kHeadDim>(settings_.output, rows, first_row + row);
      });
    }
  }

  const int consumer_idx_;
  WarpgroupMath<Config> math_;
  StageCursor<Config::kNumQueryStages> queries_;
  StageCursor<Config::kNumKeyStages> keys_, values_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
