// The producer of an attention block: one warp that takes the planner's tiles and prefetches their queries,
// keys and values, as far ahead of the consumers as there are stages.
#pragma once

#include "switchyard/detail/attention/kernel_params.hpp"
#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class AttentionProducer {
 public:
  SWITCHYARD_DEVICE AttentionProducer(const AttentionParams& params, AttentionShared<Config>& shared)
      : params_(params), settings_(params.settings), shared_(shared) {}

  // Keys are needed one block ahead of values, also from one tile to the next: if there is a stage for its
  // queries, the next tile and its first keys are loaded before the last values of this one.
  SWITCHYARD_DEVICE void run() {
    bool has_tile = begin_next();
    while (has_tile) {
      const AttentionTile& tile = *tile_;
      const int first_block = target::ld(&tile.first_block);
      int block = target::ld(&tile.end_block) - 1;
      if (block < first_block + Config::kBlocksAhead) ask_planner();
      for (; block > first_block; --block) {
        if (block == first_block + Config::kBlocksAhead) ask_planner();
        load_keys(tile, block - 1);
        load_values(tile, block);
      }
      if constexpr (Config::kNumQueryStages > 1) has_tile = begin_next();
      load_values(tile, first_block);
      if constexpr (Config::kNumQueryStages == 1) has_tile = begin_next();
    }
  }

 private:
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
    if (has_tile) load_keys(*tile_, target::ld(&tile_->end_block) - 1);
    return has_tile;
  }

  SWITCHYARD_DEVICE void load_keys(const AttentionTile& tile, int block) {
    load(tile, block, params_.keys, shared_.keys, shared_.keys_full, shared_.keys_empty, keys_);
  }
  SWITCHYARD_DEVICE void load_values(const AttentionTile& tile, int block) {
    load(tile, block, params_.values, shared_.values, shared_.values_full, shared_.values_empty, values_);
  }

  template <typename Tiles, typename Barriers>
  SWITCHYARD_DEVICE void load(const AttentionTile& tile, int block, const target::TensorMap& map,
                              Tiles& tiles, Barriers& full, Barriers& empty,
                              StageCursor<Config::kNumKeyStages>& cursor) {
    const uint32_t stage = cursor.stage();
    // acquire MM-21: the consumers have read the stage; pairs with their release()
    wait_together(empty[stage], cursor.parity() ^ 1);
    cursor.advance();
    if (settings_.keys.page_table != nullptr) return load_pages(tile, block, map, tiles[stage], full[stage]);
    if (target::lane_idx() != 0) return;
    // release MM-20: a key block, or its values, once the loads are complete; pairs with the consumers' waits
    // for keys_full and values_full
    full[stage].arrive_expect(Config::kKeyBytes);
    const int kv_head = static_cast<int>(target::ld(&tile.kv_head));
    const int row = row_of_key(tile, static_cast<uint32_t>(block) * Config::kTileKeys);
    SWITCHYARD_UNROLL
    for (int panel = 0; panel < Config::kNumPanels; ++panel)
      target::tensor_load(tiles[stage] + panel * (Config::kTileKeys * kPanelRowBytes), map,
                          panel * kPanelColumns, kv_head, row, full[stage], Config::kTuning.key_hint);
  }

  // Starts one load for as many rows as are contiguous.
  SWITCHYARD_DEVICE void load_pages(const AttentionTile& tile, int block, const target::TensorMap& map,
                                    unsigned char* rows, target::TransferBarrier& full) {
    // release MM-20: as in load()
    if (target::lane_idx() == 0) full.arrive_expect(Config::kKeyBytes);
    target::sync_warp();
    const uint32_t box_rows = settings_.keys.box_rows;
    const uint32_t num_boxes = Config::kTileKeys / box_rows;
    const int kv_head = static_cast<int>(target::ld(&tile.kv_head));
    for (uint32_t i = static_cast<uint32_t>(target::lane_idx()); i < num_boxes * Config::kNumPanels;
         i += kWarpSize) {
      const uint32_t panel = i % Config::kNumPanels, box = i / Config::kNumPanels;
      const uint32_t key = static_cast<uint32_t>(block) * Config::kTileKeys + box * box_rows;
      target::tensor_load(rows + (panel * Config::kTileKeys + box * box_rows) * kPanelRowBytes, map,
                          static_cast<int>(panel * kPanelColumns), kv_head, row_of_key(tile, key), full,
                          Config::kTuning.key_hint);
    }
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

  const AttentionParams& params_;
  const AttentionSettings& settings_;
  AttentionShared<Config>& shared_;
  AttentionTile* tile_ = nullptr;  // the last one published, in shared memory
  StageCursor<1> next_tile_;
  StageCursor<kNumTiles> tiles_;
  StageCursor<Config::kNumQueryStages> queries_;
  StageCursor<Config::kNumKeyStages> keys_, values_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
