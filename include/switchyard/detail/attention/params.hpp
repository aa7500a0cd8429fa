// The parameters of the attention kernels.
#pragma once

#include "switchyard/detail/schedule/tile_order_params.hpp"
#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {

// Where the keys of a sequence lie: by row offsets, or one length for all, or pages with their own lengths.
struct KeyLayout {
  const uint32_t* row_offsets = nullptr;  // [batch_size + 1]
  const uint32_t* lengths = nullptr;      // [batch_size]; null: by row offsets, or max_seq_len
  uint32_t max_seq_len = 0;  // without row offsets and pages: sequence s begins at row s * max_seq_len
  const int32_t* page_table = nullptr;  // [batch_size][pages_per_sequence]
  uint32_t pages_per_sequence = 0;
  uint32_t page_rows_log2 = 0;
  uint32_t box_rows = 0;  // keys of one load

  SWITCHYARD_HD uint32_t num_keys(uint32_t prompt_idx) const {
    if (lengths != nullptr) return lengths[prompt_idx];
    return row_offsets == nullptr ? max_seq_len : row_offsets[prompt_idx + 1] - row_offsets[prompt_idx];
  }
};

inline constexpr int kNoWindow = INT32_MAX / 2;

struct AttentionSettings {
  TileOrderParams order;
  KeyLayout keys;
  uint32_t num_heads = 0;           // of queries
  uint32_t heads_per_kv_head = 1;   // query heads that share a K/V head
  uint32_t heads_per_tile = 1;      // query heads that share a tile: 1, or heads_per_kv_head when decoding
  uint32_t tokens_per_tile = 0;     // rows of a tile are [token][head]
  int32_t window_left = kNoWindow;  // query at position p sees keys p - left .. p + right
  int32_t window_right = kNoWindow;
  uint32_t num_splits = 1;  // of the keys of a sequence, each split_keys of them
  uint32_t split_keys = 0;
  float scale_log2 = 0;  // of the scores, times log2(e)
  // Kernels that adjust scores: with a soft cap, a score becomes 1 - 2 / (1 + 2^(cap_factor * score)), the
  // hyperbolic tangent of scale / cap times it, and scale_log2 is that of the cap. 0: no cap.
  float cap_factor = 0;
  const float* sinks = nullptr;  // [head]: a score of no key in each softmax; null: none
  const float *key_scales = nullptr, *value_scales = nullptr;  // [K/V head]: of codes
  bf16* output = nullptr;                                      // [row][head][head_dim]
  float* lse = nullptr;             // [row][head], natural logarithm; null: not wanted
  float* partial_output = nullptr;  // more than one split: [split][row][head][head_dim], and lse of each
  float* partial_lse = nullptr;
  uint32_t* num_splits_done =
      nullptr;                     // [row][head], 0 between launches; null: a kernel behind this one combines
  uint32_t num_rows = 0;           // of queries, in all
  uint64_t* tile_times = nullptr;  // null, or for each tile of the regular grid: begin, end, block
};

// The parameters of the small kernel before a launch with ragged sequences.
struct PlanTilesParams {
  const uint32_t* row_offsets;
  uint32_t batch_size;
  uint32_t tile_rows;
  MHASchedule order;
  MHATilePlan plan;
  KeyLayout keys;
};

}  // namespace switchyard
