// The consumers of an attention block with fp8 keys and values. Their warps share the rows and the keys of a
// tile: a warp has 16 rows, and of every key block each so manieth piece of 16 keys. It converts codes where
// it multiplies them, in registers. At the end of a tile the warps with the same rows merge what they found.
#pragma once

#include "switchyard/detail/attention/tile_consumer.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/attention/codes/warp_math.cuh"
#else
#include "switchyard/detail/attention/codes/host_math.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class CodeConsumer : private TileConsumer<Config, AttentionShared<Config>> {
  using Base = TileConsumer<Config, AttentionShared<Config>>;
  using Base::settings_, Base::shared_, Base::tile, Base::tile_idx_;

 public:
  // consumer_idx: this warpgroup among the consumers.
  SWITCHYARD_DEVICE CodeConsumer(const AttentionParams& params, AttentionShared<Config>& shared,
                                 int consumer_idx)
      : Base(params, shared),
        warp_(consumer_idx * kWarpsOfGroup + target::shuffle(target::warp_idx() % kWarpsOfGroup, 0)) {}

  SWITCHYARD_DEVICE void run() {
    while (find_next_tile()) {
      this->note_time(0);
      attend();
      merge();
      store();
      this->note_time(1);
    }
  }

 private:
  static constexpr int kNumWarps = Base::kNumConsumerThreads / kWarpSize;
  static constexpr int kWarpsOfGroup = kWarpgroupThreads / kWarpSize;
  static constexpr int kRows = kRowsOfWarp, kKeys = kKeysOfWarp;
  static constexpr int kPieces = Config::kTileKeys / kKeys;  // of a key block
  static_assert(kPieces == kNumWarps && Config::kTileRows / kRows * 2 <= kNumWarps);

  // Lets the copy engine overwrite what this warp has loaded; its stores must not overtake the loads.
  SWITCHYARD_DEVICE static void give_back(target::TransferBarrier& empty) {
    target::fence_proxy_async_shared();
    Base::release(empty);
  }

  // Waits for a tile and takes its queries. Returns false if it is the tile that says that no more will come.
  SWITCHYARD_DEVICE bool find_next_tile() {
    const uint32_t stage = queries_.stage();
    // acquire MM-18: the tile and its queries; pairs with the release in the producer's load_queries()
    wait_for_phase(shared_.queries_full[stage], queries_.parity());
    queries_.advance();
    tile_idx_ = this->next_tile_idx();
    const int num_tokens = static_cast<int>(tile(&AttentionTile::num_tokens));
    if (num_tokens == 0) return false;
    const int num_rows = num_tokens * static_cast<int>(settings_.heads_per_tile);
    num_row_groups_ = num_rows <= kRows ? 1 : num_rows <= 2 * kRows ? 2 : 4;
    math_.begin(shared_.queries[stage], first_row(), num_rows,
                settings_.key_scales[tile(&AttentionTile::kv_head)], settings_);
    give_back(shared_.queries_empty[stage]);
    return true;
  }
  SWITCHYARD_DEVICE int first_row() const { return warp_ % num_row_groups_ * kRows; }
  // This warp among those with the same rows.
  SWITCHYARD_DEVICE int key_group() const { return warp_ / num_row_groups_; }

  SWITCHYARD_DEVICE void attend() {
    const int first_block = tile(&AttentionTile::first_block);
    const BlocksSeen seen = target::ld(&shared_.blocks_seen[tile_idx_][0]);
    for (int block = tile(&AttentionTile::end_block) - 1; block >= first_block; --block) {
      const bool is_plain = block >= seen.first_plain_block && block < seen.end_plain_block;
      for (int piece = key_group(); piece < kPieces; piece += kNumWarps / num_row_groups_)
        if (is_plain)
          attend_to<false>(block, piece);
        else
          attend_to<true>(block, piece);
      give_back(shared_.values_empty[values_.stage()]);
      keys_.advance();
      values_.advance();
    }
  }
  template <bool kIsMasked>
  SWITCHYARD_DEVICE void attend_to(int block, int piece) {
    const int first_key = piece * kKeys;
    // acquire MM-20: a key block; pairs with the release in the producer's load_panels()
    wait_for_phase(shared_.keys_full[keys_.stage()], keys_.parity());
    math_.score(shared_.keys[keys_.stage()], first_key);
    if (piece + kNumWarps / num_row_groups_ >= kPieces) give_back(shared_.keys_empty[keys_.stage()]);
    if constexpr (Config::kAdjustsScores)  // before masks: a masked score stays minus infinity
      if (settings_.cap_factor > 0) math_.cap_scores();
    if constexpr (kIsMasked)
      math_.mask([&](int row) { return this->first_of_keys(row, block) - first_key; },
                 [&](int row) { return this->end_of_keys(row, block) - first_key; });
    math_.weigh();
    // acquire MM-20: a block of values; pairs with the release in the producer's load_panels()
    wait_for_phase(shared_.values_full[values_.stage()], values_.parity());
    math_.template sum<kIsMasked>(shared_.values[values_.stage()], first_key,
                                  tile(&AttentionTile::num_keys) - block * Config::kTileKeys - first_key);
  }

  // In each step the upper half of the warps that are left hands its sums to the lower half.
  SWITCHYARD_DEVICE void merge() {
    for (int half = kNumWarps / num_row_groups_ / 2; half > 0; half /= 2) {
      const int group = key_group();
      auto& slot = shared_.sums[warp_ % (half * num_row_groups_)];
      if (group >= half && group < 2 * half) math_.store_sums(slot);
      target::named_barrier_sync(Base::kFirstBarrier, Base::kNumConsumerThreads);
      if (group < half) math_.merge(slot);
      target::named_barrier_sync(Base::kFirstBarrier, Base::kNumConsumerThreads);
    }
  }

  SWITCHYARD_DEVICE void store() {
    const auto rows = this->output_rows();
    const bool is_partial = this->num_splits_of_tile() > 1;
    if (key_group() == 0) {
      const int64_t first = is_partial ? this->first_of_split() : 0;
      float* lse = is_partial ? settings_.partial_lse + first : settings_.lse;
      // Of several splits only their sum has the sink.
      const bool has_sinks = this->has_sinks() && !is_partial;
      math_.finish(
          [&](int row, float value) {
            if (lse == nullptr) return;
            if (float* place = this->template place_of<1>(lse, rows, row)) target::st(place, value);
          },
          [&](int row) { return has_sinks ? this->sink_of(rows, row) : Base::kNoSink; },
          settings_.value_scales[tile(&AttentionTile::kv_head)]);
      if (is_partial)
        math_.store_floats([&](int row) {
          return this->template place_of<Config::kHeadDim>(
              settings_.partial_output + first * Config::kHeadDim, rows, row);
        });
      else
        math_.store_rows_of(
            [&](int row) { return this->template place_of<Config::kHeadDim>(settings_.output, rows, row); });
    }
    if (is_partial) this->template combine_if_last<Config::kHeadDim>(rows);
  }

  const int warp_;  // among the consumers'
  int num_row_groups_ = 1;
  WarpMath<Config> math_;
  StageCursor<Config::kNumQueryStages> queries_;
  StageCursor<Config::kNumKeyStages> keys_, values_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
