// The producer of an attention block: one warp that takes the planner's tiles and prefetches their queries,
// keys and values, as far ahead of the consumers as there are stages.
#pragma once

#include "switchyard/detail/attention/kernel_params.hpp"
#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, typename Shared = AttentionShared<Config>>
class AttentionProducer {
 public:
  SWITCHYARD_DEVICE AttentionProducer(const AttentionParams& params, Shared& shared)
      : params_(params), settings_(params.settings), shared_(shared) {
    if (settings_.keys.page_table == nullptr) return;
    const uint32_t lane = static_cast<uint32_t>(target::lane_idx());
    const uint32_t num_boxes = Config::kTileKeys / settings_.keys.box_rows;
    panel_of_lane_ = static_cast<int>(lane / num_boxes);
    key_of_lane_ = lane % num_boxes * settings_.keys.box_rows;
  }

  // Keys are needed one block ahead of values, also from one tile to the next: if there is a stage for its
  // queries, the next tile and its first keys are loaded before the last values of this one.
  SWITCHYARD_DEVICE void run() {
    bool has_tile = begin_next();
    while (has_tile) {
      const AttentionTile& tile = *tile_;
      const int first_block = target::ld(&tile.first_block);
      int block = target::ld(&tile.end_block) - 1;
      if (block < first_block + Config::kBlocksAhead) ask_planner();
      int row = loaded_row_;  // of `block`
      for (; block > first_block; --block) {
        if (block == first_block + Config::kBlocksAhead) ask_planner();
        load_keys(tile, block - 1);
        load_values(tile, row);
        row = loaded_row_;
      }
      if constexpr (Config::kNumQueryStages > 1) has_tile = begin_next();
      load_values(tile, row);
      if constexpr (Config::kNumQueryStages == 1) has_tile = begin_next();
    }
  }

 protected:
  SWITCHYARD_DEVICE void ask_planner() {
    target::sync_warp();
    // release MM-17: the tile at work is published, so that all consumers have stored the one whose memory
    // the next one takes; pairs with the planner's wait before it asks for a tile and writes there
    if (target::lane_idx() == 0) shared_.next_tile_empty.arrive();
  }

  // Takes the planner's next tile and loads its queries. Returns false if there are no more tiles, after it
  // has told the consumers.
  SWITCHYARD_DEVICE bool publish_next() {
    const uint32_t stage = queries_.stage();
    // acquire MM-19: the consumers have read the queries of this stage; pairs with their release()
    wait_together(shared_.queries_empty[stage], queries_.parity() ^ 1);
    // acquire MM-16: the next tile; pairs with the release in the planner's publish()
    wait_together(shared_.next_tile_full, next_tile_.parity());
    next_tile_.advance();
    tile_ = &shared_.tiles[tiles_.stage()];
    tiles_.advance();
    queries_.advance();
    if (target::lane_idx() == 0) load_queries(stage);
    target::sync_warp();
    return target::ld(&tile_->num_tokens) != 0;
  }
  SWITCHYARD_DEVICE void load_queries(uint32_t stage) {
    const bool has_queries = target::ld(&tile_->num_tokens) != 0;
    const uint32_t panel_bytes = settings_.heads_per_tile * settings_.tokens_per_tile * kPanelRowBytes;
    target::TransferBarrier& full = shared_.queries_full[stage];
    // release MM-18: publishes the tile; pairs with the consumers' wait for queries_full
    full.arrive_expect(has_queries ? panel_bytes * Config::kNumPanels : 0);
    if (!has_queries) return;
    const int head = static_cast<int>(target::ld(&tile_->first_head));
    const int row = static_cast<int>(target::ld(&tile_->first_row));
    SWITCHYARD_UNROLL
    for (int panel = 0; panel < Config::kNumPanels; ++panel)
      target::tensor_load(shared_.queries[stage] + panel * (Config::kTileRows * kPanelRowBytes),
                          params_.queries, panel * kPanelColumns, head, row, full, CacheHint::kStream);
  }

  SWITCHYARD_DEVICE bool begin_next() {
    const bool has_tile = publish_next();
    if (has_tile) {
      const int block = target::ld(&tile_->end_block) - 1;
      next_row_ = row_of_lane(*tile_, block);
      load_keys(*tile_, block);
    }
    return has_tile;
  }

  SWITCHYARD_DEVICE void load_keys(const AttentionTile& tile, int block) {
    take_row(tile, block);
    load(tile, loaded_row_, params_.keys, shared_.keys, shared_.keys_full, shared_.keys_empty, keys_);
  }
  SWITCHYARD_DEVICE void load_values(const AttentionTile& tile, int row) {
    load(tile, row, params_.values, shared_.values, shared_.values_full, shared_.values_empty, values_);
  }
  // Blocks come from the last to the first. The page number of the next one is read a block ahead: nobody
  // waits for it.
  SWITCHYARD_DEVICE void take_row(const AttentionTile& tile, int block) {
    loaded_row_ = next_row_;
    if (block > target::ld(&tile.first_block)) next_row_ = row_of_lane(tile, block - 1);
  }

  template <typename Tiles, typename Barriers>
  SWITCHYARD_DEVICE void load(const AttentionTile& tile, int row, const target::TensorMap& map, Tiles& tiles,
                              Barriers& full, Barriers& empty, StageCursor<Config::kNumKeyStages>& cursor) {
    const uint32_t stage = cursor.stage();
    // acquire MM-21: the consumers have read the stage; pairs with their release()
    wait_together(empty[stage], cursor.parity() ^ 1);
    cursor.advance();
    load_panels<0, Config::kNumKeyPanels>(tile, row, map, tiles[stage], full[stage]);
  }

  // Loads panels of a key block whose stage is free. `row` is that of the lane's first key, where keys are in
  // pages, else that of the block's.
  template <int kFirstPanel, int kNumPanels>
  SWITCHYARD_DEVICE void load_panels(const AttentionTile& tile, int row, const target::TensorMap& map,
                                     unsigned char* rows, target::TransferBarrier& full) {
    // release MM-20: a key block, its values, or some of its columns, once the loads are complete; pairs with
    // the consumers' waits for keys_full, values_full and latents_full
    if (target::lane_idx() == 0) full.arrive_expect(kNumPanels * Config::kTileKeys * kPanelRowBytes);
    const int kv_head = static_cast<int>(target::ld(&tile.kv_head));
    if (settings_.keys.page_table != nullptr) {  // a load for as many rows as are contiguous
      static_assert(kNumPanels * Config::kTileKeys / kMinPageRows <= kWarpSize);
      target::sync_warp();
      if (panel_of_lane_ >= kNumPanels) return;
      const int panel = kFirstPanel + panel_of_lane_;
      target::tensor_load(
          rows + (panel * Config::kTileKeys + static_cast<int>(key_of_lane_)) * kPanelRowBytes, map,
          panel * kPanelColumns, kv_head, row, full, Config::kTuning.key_hint);
      return;
    }
    if (target::lane_idx() != 0) return;
    SWITCHYARD_UNROLL
    for (int panel = kFirstPanel; panel < kFirstPanel + kNumPanels; ++panel)
      target::tensor_load(rows + panel * (Config::kTileKeys * kPanelRowBytes), map, panel * kPanelColumns,
                          kv_head, row, full, Config::kTuning.key_hint);
  }

  // Where the first key of a block lies that this lane loads.
  SWITCHYARD_DEVICE int row_of_lane(const AttentionTile& tile, int block) const {
    return row_of_key(tile, static_cast<uint32_t>(block) * Config::kTileKeys + key_of_lane_);
  }
  // Past the end of the sequence there are no pages: rows of its first page are loaded there, and masked. A
  // tile that sees no key gets rows past the end of the tensor: zeros, which cost no memory traffic.
  SWITCHYARD_DEVICE int row_of_key(const AttentionTile& tile, uint32_t key) const {
    const KeyLayout& keys = settings_.keys;
    const uint32_t num_keys = static_cast<uint32_t>(target::ld(&tile.num_keys));
    if (num_keys == 0) return INT32_MAX / 2;
    if (keys.page_table == nullptr) return static_cast<int>(target::ld(&tile.first_key_row) + key);
    const uint32_t page = key < num_keys ? key >> keys.page_rows_log2 : 0;
    const uint32_t row_in_page = key & ((1u << keys.page_rows_log2) - 1);
    const uint64_t entry = uint64_t{target::ld(&tile.prompt_idx)} * keys.pages_per_sequence + page;
    return (target::ld(&keys.page_table[entry]) << keys.page_rows_log2) + static_cast<int>(row_in_page);
  }

  static constexpr int kMinPageRows = 16;

  const AttentionParams& params_;
  const AttentionSettings& settings_;
  Shared& shared_;
  AttentionTile* tile_ = nullptr;  // the last one published, in shared memory
  // With pages, what this lane loads of a key block: one panel of one box of rows.
  int panel_of_lane_ = 0;
  uint32_t key_of_lane_ = 0;
  // row_of_lane() of the block whose keys were loaded last, and of the one before it.
  int loaded_row_ = 0, next_row_ = 0;
  StageCursor<1> next_tile_;
  StageCursor<kNumTiles> tiles_;
  StageCursor<Config::kNumQueryStages> queries_;
  StageCursor<Config::kNumKeyStages> keys_, values_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
