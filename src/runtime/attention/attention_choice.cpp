#include "attention_choice.hpp"

#include <algorithm>

#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/launch/attention_kernels.hpp"
#include "switchyard/detail/schedule/any_scheduler.hpp"
#include "switchyard/detail/target/vocabulary.hpp"

namespace switchyard {
namespace {

constexpr AttentionLimits kLimits = kAttentionLimits;

uint32_t max_num_blocks(const AttentionShape& shape, const AttentionDevice& device) {
  return shape.num_blocks > 0 ? static_cast<uint32_t>(shape.num_blocks) : device.num_multiprocessors;
}

// The query heads that share a tile: when decoding, as many of a K/V head's as divide them and fit.
uint32_t heads_per_tile_of(const AttentionTuning& tuning, uint32_t heads_per_kv_head) {
  if (tuning.kind != AttentionKind::kDecode) return 1;
  uint32_t num_heads = std::min(heads_per_kv_head, static_cast<uint32_t>(tuning.tile_rows()));
  while (heads_per_kv_head % num_heads != 0) --num_heads;
  return num_heads;
}

struct Splits {
  uint32_t num_splits = 1;
  uint32_t split_keys = 0;
};

// Chooses enough splits of the keys that all blocks have work, and about the same amount. The first is worth
// short splits; the second only such whose partial output, of `num_rows` rows and heads, is small beside
// their keys. num_units counts the tiles of all sequences and heads without splits.
Splits choose_splits(const AttentionShape& shape, const AttentionTuning& tuning, uint64_t num_units,
                     uint32_t num_rows, uint32_t num_blocks) {
  const uint32_t num_keys = static_cast<uint32_t>(shape.max_key_len);
  if (tuning.kind != AttentionKind::kDecode || num_units == 0) return {1, num_keys};
  const auto splits_for = [&](int units_per_block, uint64_t min_split_keys) {
    return std::min(
        ceil_div<uint64_t>(uint64_t{num_blocks} * static_cast<uint64_t>(units_per_block), num_units),
        ceil_div<uint64_t>(num_keys, min_split_keys));
  };
  const uint64_t even_split_keys = std::max(static_cast<uint64_t>(kLimits.min_even_split_keys),
                                            uint64_t{num_rows} * static_cast<uint64_t>(kLimits.keys_per_row));
  const uint64_t num_splits = std::min(std::max(splits_for(1, static_cast<uint64_t>(kLimits.min_split_keys)),
                                                splits_for(kLimits.units_per_block, even_split_keys)),
                                       static_cast<uint64_t>(kLimits.max_splits));
  if (num_splits <= 1) return {1, num_keys};
  const uint32_t split_keys = align_up(ceil_div(num_keys, static_cast<uint32_t>(num_splits)),
                                       static_cast<uint32_t>(tuning.tile_keys));
  return {ceil_div(num_keys, split_keys), split_keys};
}

// Chooses the splits of latents: those with the least makespan, in key blocks. A tile costs a few key blocks
// more than it has, and one of several splits more again, for its partial output. If sequences differ in
// length, blocks end up to a tile apart.
Splits choose_latent_splits(const AttentionShape& shape, const AttentionTuning& tuning, uint64_t num_units,
                            uint32_t num_rows, uint32_t num_blocks) {
  const uint64_t tile_keys = static_cast<uint64_t>(tuning.tile_keys);
  const uint64_t most_keys = static_cast<uint64_t>(shape.max_key_len);
  const uint64_t num_key_blocks = ceil_div(most_keys, tile_keys);
  if (num_key_blocks == 0 || num_units == 0) return {1, static_cast<uint32_t>(most_keys)};
  const uint64_t batch_size = static_cast<uint64_t>(shape.batch_size);
  const uint64_t num_key_rows = std::min(static_cast<uint64_t>(shape.num_key_rows), batch_size * most_keys);
  const bool is_even = shape.page_size == 0 && num_key_rows == batch_size * most_keys;
  const uint64_t mean_key_blocks = ceil_div(num_key_rows, batch_size * tile_keys);
  const uint64_t cost_of_tile = static_cast<uint64_t>(kLimits.latent_tile_blocks);
  const uint64_t cost_of_split = ceil_div(num_rows, static_cast<uint32_t>(kLimits.latent_rows_per_block));
  const auto cost_of = [&](uint64_t split_blocks) {
    const uint64_t num_splits =
        ceil_div(is_even ? num_key_blocks : std::max<uint64_t>(mean_key_blocks, 1), split_blocks);
    const uint64_t of_tile = cost_of_tile + (num_splits > 1 ? cost_of_split : 0);
    if (is_even) return ceil_div(num_units * num_splits, uint64_t{num_blocks}) * (split_blocks + of_tile);
    return num_units * (mean_key_blocks + num_splits * of_tile) / num_blocks + split_blocks;
  };
  uint64_t best = num_key_blocks;
  for (uint64_t wanted = 2; wanted <= std::min(static_cast<uint64_t>(kLimits.max_splits), num_key_blocks);
       ++wanted)
    if (const uint64_t split_blocks = ceil_div(num_key_blocks, wanted); cost_of(split_blocks) < cost_of(best))
      best = split_blocks;
  if (best == num_key_blocks) return {1, static_cast<uint32_t>(most_keys)};
  return {static_cast<uint32_t>(ceil_div(num_key_blocks, best)), static_cast<uint32_t>(best * tile_keys)};
}

// The bytes of a key and its value in one K/V head.
uint64_t kv_row_bytes(const AttentionShape& shape) {
  const uint64_t num_elements =
      static_cast<uint64_t>(shape.value_dim > 0 ? shape.head_dim : 2 * shape.head_dim);
  return num_elements * (shape.kv_format == KvFormat::kFP8 ? 1 : sizeof(bf16));
}

// Decoding, whichever kernel runs: a tile has all queries of a sequence that share a K/V head, or nearly.
bool has_few_queries(const AttentionShape& shape) { return shape.max_query_len <= kLimits.max_decode_tokens; }

// All tiles cost the same.
bool is_even(const AttentionShape& shape) {
  return !has_few_queries(shape) && !shape.causal && shape.window == 0 && shape.page_size == 0 &&
         int64_t{shape.batch_size} * shape.max_query_len == shape.num_query_rows &&
         int64_t{shape.batch_size} * shape.max_key_len == shape.num_key_rows;
}

MHASchedule choose_order(const AttentionShape& shape, uint32_t tile_rows) {
  if (shape.own_kernels != nullptr) return shape.own_kernels->order;
  if (shape.order != MHASchedule::AUTOMATIC) return shape.order;
  if (has_few_queries(shape) || is_even(shape)) return MHASchedule::DEFAULT;
  const uint32_t longest = static_cast<uint32_t>(std::max(shape.max_query_len, shape.max_key_len));
  const bool is_short = ceil_div(longest, tile_rows) < static_cast<uint32_t>(kLimits.min_tiles_for_lpt);
  return is_short ? MHASchedule::DEFAULT : MHASchedule::LPT;
}

struct ChosenScheduler {
  TileSchedulerKind kind;
  const char* reason;
};

ChosenScheduler choose_scheduler(const AttentionShape& shape, bool has_key_lengths) {
  if (shape.own_kernels != nullptr) return {TileSchedulerKind::kAutomatic, "as asked"};
  if (shape.scheduler != TileSchedulerKind::kAutomatic) return {shape.scheduler, "as asked"};
  if (is_even(shape) && has_key_lengths)
    return {TileSchedulerKind::kQueued,
            "sequences have keys of their own number: blocks take tiles from a queue"};
  if (is_even(shape))
    return {TileSchedulerKind::kTile, "all tiles cost the same: blocks stride through them"};
  return {TileSchedulerKind::kQueued, has_few_queries(shape)
                                          ? "few queries: blocks take parts of the keys from a queue"
                                          : "tiles differ in cost: blocks take them from a queue"};
}

std::string reason_of(const AttentionShape& shape, const AttentionChoice& choice, const char* of_scheduler) {
  std::string reason = of_scheduler;
  const bool is_chosen = shape.own_kernels == nullptr && shape.scheduler == TileSchedulerKind::kAutomatic &&
                         shape.order == MHASchedule::AUTOMATIC;
  if (is_chosen && !has_few_queries(shape) && !is_even(shape))
    reason += choice.order == MHASchedule::LPT ? ", the longest first" : ", in order: all are short";
  return reason;
}

}  // namespace

AttentionChoice choose_attention(const AttentionShape& shape, bool has_key_lengths,
                                 const AttentionDevice& device) {
  const uint32_t batch_size = static_cast<uint32_t>(shape.batch_size);
  const uint32_t num_heads = static_cast<uint32_t>(shape.num_heads);
  const uint32_t heads_per_kv_head = num_heads / static_cast<uint32_t>(shape.num_kv_heads);
  AttentionChoice choice;
  choice.kind = kind_of_attention(shape.head_dim, shape.max_query_len, shape.max_key_len,
                                  shape.causal || shape.window > 0, shape.kv_format);
  if (shape.own_kernels == nullptr)
    choice.candidate = shape.candidate >= 0
                           ? shape.candidate
                           : choose_candidate(shape.head_dim, choice.kind, shape.max_key_len);
  const AttentionTuning tuning =
      attention_tuning(shape.head_dim, choice.kind, choice.candidate, shape.kv_format);
  choice.heads_per_tile = heads_per_tile_of(tuning, heads_per_kv_head);
  choice.tile_rows = static_cast<uint32_t>(tuning.tile_rows()) / choice.heads_per_tile;
  choice.max_num_tiles = ceil_div(static_cast<uint32_t>(shape.max_query_len), choice.tile_rows);

  const uint32_t max_blocks = max_num_blocks(shape, device);
  const uint32_t num_ctas = shape.num_blocks > 0
                                ? max_blocks
                                : max_blocks * static_cast<uint32_t>(tuning.blocks_per_multiprocessor);
  const uint64_t num_units = uint64_t{batch_size} * num_heads / choice.heads_per_tile * choice.max_num_tiles;
  const uint32_t num_rows =
      choice.heads_per_tile * std::min(choice.tile_rows, static_cast<uint32_t>(shape.max_query_len));
  const Splits splits = (tuning.value_dim > 0 ? choose_latent_splits : choose_splits)(
      shape, tuning, num_units, num_rows, num_ctas);
  choice.num_splits = splits.num_splits;
  choice.split_keys = splits.split_keys;

  const ChosenScheduler scheduler = choose_scheduler(shape, has_key_lengths);
  choice.scheduler = scheduler.kind;
  choice.order = choose_order(shape, choice.tile_rows);
  choice.reason = reason_of(shape, choice, scheduler.reason);
  // To the scheduler the heads that share a tile are one head, and each split of all heads is as many heads
  // more: neighbours share a K/V head if they do in one split.
  choice.tile_shape = {choice.tile_rows, num_heads / choice.heads_per_tile * choice.num_splits, num_ctas,
                       static_cast<uint32_t>(device.l2_bytes / kv_row_bytes(shape)),
                       heads_per_kv_head / choice.heads_per_tile};
  if (shape.own_kernels != nullptr) choice.own_scheduler = shape.own_kernels->scheduler_name;
  const GridDim grid = shape.own_kernels != nullptr
                           ? shape.own_kernels->grid_dim(batch_size, choice.max_num_tiles, choice.tile_shape)
                           : grid_of(choice.scheduler, batch_size, choice.max_num_tiles, choice.tile_shape);
  choice.num_blocks = grid.num_blocks();
  return choice;
}

std::string to_string(const AttentionChoice& choice) {
  std::string text =
      std::string(to_string(choice.kind)) + ", tiles of " + std::to_string(choice.tile_rows) + " queries, " +
      (choice.own_scheduler != nullptr ? choice.own_scheduler : to_string(choice.scheduler)) + ", order " +
      option_name(choice.order) + ", " + std::to_string(choice.num_blocks) + " blocks";
  if (choice.num_splits > 1)
    text += ", " + std::to_string(choice.num_splits) + " splits of " + std::to_string(choice.split_keys) +
            " keys";
  return text + ": " + choice.reason;
}

}  // namespace switchyard
