// One tile of work, as the roles of a block describe it to each other.
#pragma once

#include "switchyard/detail/attention/config.hpp"
#include "switchyard/detail/attention/params.hpp"

namespace switchyard {

// The key blocks that one consumer sees: from end_block on none of its rows sees a key, and in blocks
// first_plain_block .. end_plain_block - 1 every row sees every key. The struct is read whole, once per tile.
struct alignas(16) BlocksSeen {
  int32_t end_block;
  int32_t first_plain_block;
  int32_t end_plain_block;
  int32_t num_unseen;     // of the tile's blocks, from end_block on
  int32_t num_last_keys;  // of block end_block - 1: no row sees more
};

struct AttentionTile {
  uint32_t first_row;   // of the queries, among the rows of all sequences
  uint32_t num_tokens;  // that are there; 0: no more tiles will come
  uint32_t first_head;
  uint32_t kv_head;
  uint32_t split_and_count;  // decoding: the split, and << 16 how many of the sequence's splits have keys
  uint32_t first_key_row;    // of the sequence, among the rows of all keys
  uint32_t prompt_idx;
  int32_t num_keys;        // that this tile may see at all: of the sequence, up to the end of the split
  int32_t first_position;  // of the tile's first token among the keys
  int32_t first_block;  // blocks of keys: first_block .. end_block - 1, worked on from the last to the first
  int32_t end_block;
  uint32_t grid_idx;  // the tile's index in the regular grid, for tile_times
};

// Returns what one consumer sees of the blocks of a tile.
template <typename Config>
SWITCHYARD_HD BlocksSeen find_blocks_seen(const AttentionTile& tile, const AttentionSettings& settings,
                                          int consumer_idx) {
  constexpr int32_t kTileKeys = Config::kTileKeys;
  int32_t first_token = 0, end_token = static_cast<int32_t>(tile.num_tokens);
  if constexpr (!Config::kIsDecode) {  // there a row is a token
    first_token = consumer_idx * kWarpgroupRows;
    if (end_token > first_token + kWarpgroupRows) end_token = first_token + kWarpgroupRows;
  }
  const int32_t first_position = tile.first_position + first_token;
  const int32_t last_position = tile.first_position + end_token - 1;
  int32_t end_key = first_token < end_token ? tile.num_keys : 0;  // without a row: nothing is seen
  if (settings.window_right < kNoWindow && end_key > last_position + settings.window_right + 1)
    end_key = last_position + settings.window_right + 1;
  int32_t end_seen = tile.num_keys, first_seen = 0;  // by every row
  if (settings.window_right < kNoWindow && end_seen > first_position + settings.window_right + 1)
    end_seen = first_position + settings.window_right + 1;
  if (settings.window_left < kNoWindow && last_position > settings.window_left)
    first_seen = last_position - settings.window_left;
  // Every consumer has at least one key block and skips at most two: skipping a third while it holds the last
  // values of the previous tile would deadlock on the value stages.
  constexpr int32_t kMaxUnseen = 2;
  BlocksSeen seen;
  seen.end_block = end_key < 0 ? 0 : (end_key + kTileKeys - 1) / kTileKeys;
  if (seen.end_block < tile.end_block - kMaxUnseen) seen.end_block = tile.end_block - kMaxUnseen;
  if (seen.end_block <= tile.first_block) seen.end_block = tile.first_block + 1;
  seen.num_unseen = tile.end_block - seen.end_block;
  seen.num_last_keys = end_key - (seen.end_block - 1) * kTileKeys;
  if (seen.num_last_keys < 1) seen.num_last_keys = 1;
  seen.first_plain_block = (first_seen + kTileKeys - 1) / kTileKeys;
  seen.end_plain_block = end_seen < 0 ? 0 : end_seen / kTileKeys;
  return seen;
}

// Finds the key blocks that a tile works on.
template <typename Config>
SWITCHYARD_HD void find_blocks(AttentionTile& tile, const AttentionSettings& settings, uint32_t split,
                               int32_t num_keys) {
  constexpr int32_t kTileKeys = Config::kTileKeys;
  int32_t first_key = 0, end_key = num_keys;
  if (settings.num_splits > 1) {
    first_key = static_cast<int32_t>(split * settings.split_keys);
    if (end_key > first_key + static_cast<int32_t>(settings.split_keys))
      end_key = first_key + static_cast<int32_t>(settings.split_keys);
  }
  tile.num_keys = end_key;
  const int32_t last_position = tile.first_position + static_cast<int32_t>(tile.num_tokens) - 1;
  if (settings.window_right < kNoWindow && end_key > last_position + settings.window_right + 1)
    end_key = last_position + settings.window_right + 1;
  if (settings.window_left < kNoWindow && first_key < tile.first_position - settings.window_left)
    first_key = tile.first_position - settings.window_left;
  if (end_key < 0) end_key = 0;
  tile.first_block = first_key / kTileKeys;
  tile.end_block = (end_key + kTileKeys - 1) / kTileKeys;
  if (end_key <= first_key) {
    // Rows that see nothing get one fully masked block, so that every tile has one.
    tile.num_keys = 0;
    tile.first_block = 0;
    tile.end_block = 1;
  }
}

}  // namespace switchyard
