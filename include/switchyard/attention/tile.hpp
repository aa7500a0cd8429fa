// One tile of work as the roles of a block tell it to each other.
#pragma once

#include "switchyard/attention/config.hpp"
#include "switchyard/attention/params.hpp"

namespace switchyard {

struct AttentionTile {
  uint32_t first_row;   // of the queries, among the rows of all sequences
  uint32_t num_tokens;  // that are there; 0: no more tiles will come
  uint32_t first_head;
  uint32_t kv_head;
  uint32_t split;
  uint32_t first_key_row;  // of the sequence, among the rows of all keys
  uint32_t prompt_idx;
  int32_t num_keys;        // that this tile may see at all: of the sequence, up to the end of the split
  int32_t first_position;  // of the tile's first token among the keys
  int32_t first_block;  // blocks of keys: first_block .. end_block - 1, worked on from the last to the first
  int32_t end_block;
  int32_t
      first_plain_block;  // blocks first_plain_block .. end_plain_block - 1: every row sees every key of them
  int32_t end_plain_block;
  uint32_t grid_idx;  // the tile's place in the regular grid, for tile_times
};

// Which keys a tile works on, in blocks of `tile_keys`.
template <int kTileKeys>
SWITCHYARD_HD void find_blocks(AttentionTile& tile, const AttentionNumbers& numbers, int32_t num_keys) {
  int32_t first_key = 0, end_key = num_keys;
  if (numbers.num_splits > 1) {
    first_key = static_cast<int32_t>(tile.split * numbers.split_keys);
    if (end_key > first_key + static_cast<int32_t>(numbers.split_keys))
      end_key = first_key + static_cast<int32_t>(numbers.split_keys);
  }
  tile.num_keys = end_key;
  const int32_t last_position = tile.first_position + static_cast<int32_t>(tile.num_tokens) - 1;
  if (numbers.window_right < kNoWindow && end_key > last_position + numbers.window_right + 1)
    end_key = last_position + numbers.window_right + 1;
  if (numbers.window_left < kNoWindow && first_key < tile.first_position - numbers.window_left)
    first_key = tile.first_position - numbers.window_left;
  if (end_key < 0) end_key = 0;
  tile.first_block = first_key / kTileKeys;
  tile.end_block = (end_key + kTileKeys - 1) / kTileKeys;
  if (end_key <= first_key) {
    // Rows that see nothing: one block, of which nothing is seen, so that every tile has one.
    tile.num_keys = 0;
    tile.first_block = 0;
    tile.end_block = 1;
  }
  int32_t end_seen = tile.num_keys, first_seen = 0;  // by every row
  if (numbers.window_right < kNoWindow && end_seen > tile.first_position + numbers.window_right + 1)
    end_seen = tile.first_position + numbers.window_right + 1;
  if (numbers.window_left < kNoWindow && last_position > numbers.window_left)
    first_seen = last_position - numbers.window_left;
  tile.first_plain_block = (first_seen + kTileKeys - 1) / kTileKeys;
  tile.end_plain_block = end_seen < 0 ? 0 : end_seen / kTileKeys;
}

}  // namespace switchyard
