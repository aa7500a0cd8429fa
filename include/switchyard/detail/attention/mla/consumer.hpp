// A consumer of an MLA block. Both consumers have the same 64 rows, and half of the output's columns each.
// The first computes scores and weights and hands the weights to the second; it starts the scores of the next
// key block behind its own sums, so that the matrix unit works while weights are handed over.
#pragma once

#include "switchyard/detail/attention/mla/shared.hpp"
#include "switchyard/detail/attention/tile_consumer.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/attention/mla/warpgroup_math.cuh"
#else
#include "switchyard/detail/attention/mla/host_math.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

// kConsumerIdx: this warpgroup among the consumers. Each has code of its own: were the first one's products
// in a branch of what both execute, the assembler would serialise them.
template <typename Config, int kConsumerIdx>
class MlaConsumer : private TileConsumer<Config, MlaShared<Config>> {
  using Base = TileConsumer<Config, MlaShared<Config>>;
  using Base::settings_, Base::shared_, Base::tile, Base::tile_idx_, Base::release;

 public:
  SWITCHYARD_DEVICE MlaConsumer(const AttentionParams& params, MlaShared<Config>& shared)
      : Base(params, shared), math_(params.settings.scale_log2) {}

  SWITCHYARD_DEVICE void run() {
    while (find_next_tile()) {
      this->note_time(0);
      math_.begin();
      if constexpr (kConsumerIdx == 0)
        attend();
      else
        follow();
      store();
      this->note_time(1);
    }
  }

 private:
  // Waits for a tile and its queries. Returns false if it is the tile that says that no more will come.
  SWITCHYARD_DEVICE bool find_next_tile() {
    // acquire MM-18: the tile and its queries; pairs with the release in the producer's load_queries()
    wait_for_phase(shared_.queries_full[0], queries_.parity());
    queries_.advance();
    tile_idx_ = this->next_tile_idx();
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
    target::named_barrier_sync(Base::kFirstBarrier, kWarpgroupThreads);
  }

  // Masks keys that not all rows of this tile see.
  SWITCHYARD_DEVICE void mask_end(int block) {
    math_.mask_from([&](int row) { return this->end_of_keys(row, block); });
  }
  SWITCHYARD_DEVICE void mask_begin(int block) {
    math_.mask_before([&](int row) { return this->first_of_keys(row, block); });
  }

  SWITCHYARD_DEVICE void store() {
    const auto rows = this->output_rows();
    const bool is_partial = this->num_splits_of_tile() > 1;
    const int64_t first = is_partial ? this->first_of_split() : 0;
    float* lse = is_partial ? settings_.partial_lse + first : settings_.lse;
    math_.finish(
        [&](int row, float value) {
          const int64_t output_idx = this->output_idx_of(rows, row);
          if (kConsumerIdx == 0 && lse != nullptr && output_idx >= 0) target::st(&lse[output_idx], value);
        },
        [](int) { return Base::kNoSink; });
    constexpr int kFirstColumn = kConsumerIdx * Config::kHeadDim;
    if (!is_partial)
      return math_.store_rows_of([&](int row) {
        return this->template place_of<Config::kValueDim>(settings_.output + kFirstColumn, rows, row);
      });
    math_.store_floats([&](int row) {
      return this->template place_of<Config::kValueDim>(
          settings_.partial_output + first * Config::kValueDim + kFirstColumn, rows, row);
    });
    this->template combine_if_last<Config::kValueDim>(rows);
  }

  MlaMath<Config> math_;
  StageCursor<1> queries_, weights_;
  StageCursor<Config::kNumKeyStages> latents_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
