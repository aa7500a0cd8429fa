// The producer of an attention block: one warp that asks the scheduler for tiles and starts the loads of their
// queries, keys and values, as far ahead of the consumers as there are stages.
#pragma once

#include "switchyard/attention/any_scheduler.hpp"
#include "switchyard/attention/kernel_params.hpp"
#include "switchyard/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class AttentionProducer {
 public:
  SWITCHYARD_DEVICE AttentionProducer(const AttentionParams& params, AttentionShared<Config>& shared)
      : params_(params), numbers_(params.numbers), shared_(shared) {}

  // Turned by half a tile: the next one is looked for when the first keys of this one are under way, while the
  // consumers are busy.
  SWITCHYARD_DEVICE void run() {
    AnyScheduler scheduler(numbers_.order, shared_.scheduler_slots);
    int block = -1, first_block = 0;  // of the tile in hand: none yet
    do {
      scheduler.find_next();
      prepare(scheduler);
      // Keys are needed one block ahead of values.
      for (; block > first_block; --block) {
        load_keys(block - 1);
        load_values(block);
      }
      if (block == first_block) load_values(block);
      publish_next();
      first_block = target::ld(&tile_->first_block);
      block = target::ld(&tile_->end_block) - 1;
      if (block >= first_block) load_keys(block);
    } while (target::ld(&tile_->num_tokens) != 0);
  }

 private:
  // Describes the scheduler's tile in shared memory, since registers are scarce; one without tokens at the end.
  SWITCHYARD_DEVICE void prepare(const AnyScheduler& scheduler) {
    AttentionTile tile{};
    if (scheduler.is_valid()) tile = describe(scheduler.seq_info());
    if (target::lane_idx() == 0) target::st(&shared_.next_tile, tile);
    target::sync_warp();
  }

  SWITCHYARD_DEVICE AttentionTile describe(const SeqInfo& info) const {
    AttentionTile tile{};
    tile.first_row = info.start_of_seq + info.prompt_offset;
    const uint32_t num_left = info.seq_len - info.prompt_offset;
    tile.num_tokens = num_left < numbers_.tokens_per_tile ? num_left : numbers_.tokens_per_tile;
    tile.first_head = info.head_idx / numbers_.num_splits * numbers_.heads_per_tile;
    tile.split = info.head_idx % numbers_.num_splits;
    tile.kv_head = tile.first_head / numbers_.heads_per_kv_head;
    tile.prompt_idx = info.prompt_idx;
    const KeyPlaces& keys = numbers_.keys;
    uint32_t num_keys = keys.max_seq_len;
    tile.first_key_row = info.prompt_idx * keys.max_seq_len;
    if (keys.row_offsets != nullptr) {
      tile.first_key_row = target::ld(&keys.row_offsets[info.prompt_idx]);
      num_keys = target::ld(&keys.row_offsets[info.prompt_idx + 1]) - tile.first_key_row;
    }
    if (keys.lengths != nullptr) num_keys = target::ld(&keys.lengths[info.prompt_idx]);
    tile.first_position = static_cast<int32_t>(num_keys - info.seq_len + info.prompt_offset);
    find_blocks<Config::kTileKeys>(tile, numbers_, static_cast<int32_t>(num_keys));
    tile.grid_idx = (info.prompt_idx * numbers_.order.shape.num_heads + info.head_idx) *
                        numbers_.order.max_num_prompt_tiles +
                    info.prompt_offset / numbers_.tokens_per_tile;
    return tile;
  }

  // The tile that was prepared, and its queries; without blocks of keys nobody looks at those.
  SWITCHYARD_DEVICE void publish_next() {
    const uint32_t stage = queries_.stage();
    wait_for_phase(shared_.queries_empty[stage], queries_.parity() ^ 1);
    target::TransferBarrier& full = shared_.queries_full[stage];
    tile_ = &shared_.tiles[stage];
    const AttentionTile tile = target::ld(&shared_.next_tile);
    const bool has_queries = tile.end_block > tile.first_block;
    const uint32_t panel_bytes = numbers_.heads_per_tile * numbers_.tokens_per_tile * kPanelRowBytes;
    if (target::lane_idx() == 0) {
      target::st(tile_, tile);
      // release: publishes the tile; pairs with the consumers' wait for queries_full
      full.arrive_expect(has_queries ? panel_bytes * Config::kNumPanels : 0);
    }
    target::sync_warp();
    if (has_queries && target::lane_idx() < Config::kNumPanels) {
      const int panel = target::lane_idx();
      target::tensor_load(shared_.queries[stage] + panel * (Config::kTileRows * kPanelRowBytes), params_.queries,
                          panel * kPanelColumns, static_cast<int>(tile.first_head),
                          static_cast<int>(tile.first_row), full, CacheHint::kStream);
    }
    queries_.advance();
  }

  SWITCHYARD_DEVICE void load_keys(int block) {
    load(block, params_.keys, shared_.keys, shared_.keys_full, shared_.keys_empty, keys_);
  }
  SWITCHYARD_DEVICE void load_values(int block) {
    load(block, params_.values, shared_.values, shared_.values_full, shared_.values_empty, values_);
  }

  template <typename Tiles, typename Barriers>
  SWITCHYARD_DEVICE void load(int block, const target::TensorMap& map, Tiles& tiles, Barriers& full,
                              Barriers& empty, StageCursor<Config::kNumKeyStages>& cursor) {
    wait_for_phase(empty[cursor.stage()], cursor.parity() ^ 1);
    if (target::lane_idx() == 0) full[cursor.stage()].arrive_expect(Config::kKeyBytes);
    target::sync_warp();
    const uint32_t box_rows = numbers_.keys.box_rows;
    const uint32_t num_boxes = Config::kTileKeys / box_rows;
    const uint32_t kv_head = target::ld(&tile_->kv_head);
    for (uint32_t i = static_cast<uint32_t>(target::lane_idx()); i < num_boxes * Config::kNumPanels;
         i += kWarpSize) {
      const uint32_t panel = i % Config::kNumPanels, box = i / Config::kNumPanels;
      const uint32_t key = static_cast<uint32_t>(block) * Config::kTileKeys + box * box_rows;
      target::tensor_load(tiles[cursor.stage()] + (panel * Config::kTileKeys + box * box_rows) * kPanelRowBytes, map,
                          static_cast<int>(panel * kPanelColumns), static_cast<int>(kv_head), row_of_key(key),
                          full[cursor.stage()], CacheHint::kKeep);
    }
    cursor.advance();
  }

  // Pages past the end of the sequence have no place: the rows of its first page are loaded, and masked.
  SWITCHYARD_DEVICE int row_of_key(uint32_t key) const {
    const KeyPlaces& keys = numbers_.keys;
    if (keys.page_table == nullptr) return static_cast<int>(target::ld(&tile_->first_key_row) + key);
    const bool is_there = key < static_cast<uint32_t>(target::ld(&tile_->num_keys));
    const uint32_t page = is_there ? key >> keys.page_rows_log2 : 0;
    const uint32_t row_in_page = key & ((1u << keys.page_rows_log2) - 1);
    const uint64_t entry = uint64_t{target::ld(&tile_->prompt_idx)} * keys.pages_per_sequence + page;
    return (target::ld(&keys.page_table[entry]) << keys.page_rows_log2) + static_cast<int>(row_in_page);
  }

  const AttentionParams& params_;
  const AttentionNumbers& numbers_;
  AttentionShared<Config>& shared_;
  AttentionTile* tile_ = nullptr;  // being loaded, in shared memory
  StageCursor<Config::kNumQueryStages> queries_;
  StageCursor<Config::kNumKeyStages> keys_, values_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
