// What is launched for which shape: the choice is a pure function, pinned here by a table for an H200.
#include "runtime/attention/attention_choice.hpp"

#include <gtest/gtest.h>

#include "switchyard/detail/attention/tuning.hpp"

namespace switchyard {
namespace {

constexpr AttentionDevice kH200{.num_multiprocessors = 132, .l2_bytes = 50 << 20};

// A batch of sequences that are all alike.
AttentionShape even(int head_dim, int batch_size, int query_len, int key_len, bool causal = false) {
  return {.head_dim = head_dim,
          .num_heads = 16,
          .num_kv_heads = 4,
          .batch_size = batch_size,
          .max_query_len = query_len,
          .max_key_len = key_len,
          .num_query_rows = int64_t{batch_size} * query_len,
          .num_key_rows = int64_t{batch_size} * key_len,
          .causal = causal};
}
// The same, ragged: fewer rows than the longest sequence times the batch.
AttentionShape ragged(int head_dim, int batch_size, int query_len, int key_len, bool causal = false) {
  AttentionShape shape = even(head_dim, batch_size, query_len, key_len, causal);
  shape.num_query_rows = shape.num_query_rows / 2 + query_len;
  shape.num_key_rows = shape.num_key_rows / 2 + key_len;
  return shape;
}

// The same with fp8 keys and values, and with 32 heads over latents.
AttentionShape of_codes(AttentionShape shape) {
  shape.kv_format = KvFormat::kFP8;
  return shape;
}
AttentionShape of_latents(AttentionShape shape) {
  shape.num_heads = 32;
  shape.num_kv_heads = 1;
  shape.head_dim = kLatentDim;
  shape.value_dim = kLatentValueDim;
  return shape;
}

struct ChoiceRow {
  AttentionShape shape;
  bool has_key_lengths;
  const char* choice;
};

TEST(AttentionChoice, Table) {
  const char* const kEven = "all tiles cost the same: blocks stride through them";
  const ChoiceRow rows[] = {
      // Full: blocks stride where all tiles cost the same.
      {even(64, 8, 4096, 4096), false, "full, tiles of 192 queries, tile, order default, 132 blocks: "},
      {even(128, 8, 4096, 4096), false, "full, tiles of 128 queries, tile, order default, 132 blocks: "},
      {even(256, 1, 100, 100), false, "full, tiles of 128 queries, tile, order default, 16 blocks: "},
      // .. but not where sequences differ.
      {even(128, 8, 4096, 4096), true,
       "full, tiles of 128 queries, queued, order default, 132 blocks: sequences have keys of their own "
       "number: blocks take tiles from a queue"},
      {ragged(128, 8, 4096, 4096), false,
       "full, tiles of 128 queries, queued, order lpt, 132 blocks: tiles differ in cost: blocks take them "
       "from a queue, the longest first"},
      // Masked: tiles differ in cost; short ones end evenly in any order.
      {even(128, 8, 4096, 4096, true), false,
       "masked, tiles of 128 queries, queued, order lpt, 132 blocks: tiles differ in cost: blocks take them "
       "from a queue, the longest first"},
      {even(128, 8, 896, 896, true), false,
       "masked, tiles of 128 queries, queued, order default, 132 blocks: tiles differ in cost: blocks take "
       "them from a queue, in order: all are short"},
      {even(128, 8, 897, 897, true), false, "masked, tiles of 128 queries, queued, order lpt, 132 blocks: "},
      {even(64, 8, 1024, 1024, true), false,
       "short masked, tiles of 128 queries, queued, order lpt, 264 blocks: "},
      {even(64, 8, 1024, 1025, true), false,
       "masked, tiles of 192 queries, queued, order default, 132 blocks: "},
      // Decode: four query heads share a tile, and long keys are split until blocks have about eight splits
      // each, and short ones where blocks would have nothing to do.
      {even(128, 64, 1, 4096), false,
       "decode, tiles of 16 queries, queued, order default, 132 blocks: few queries: "
       "blocks take parts of the keys from a queue"},
      {even(128, 4, 1, 65536), false,
       "decode, tiles of 16 queries, queued, order default, 132 blocks, 16 splits of 4096 keys: "},
      {even(256, 1, 16, 1 << 20), false,
       "decode, tiles of 16 queries, queued, order default, 132 blocks, 128 splits of 8192 keys: "},
      {even(128, 64, 16, 4096), false, "decode, tiles of 16 queries, queued, order default, 132 blocks: "},
      {even(128, 1, 16, 4096), false,
       "decode, tiles of 16 queries, queued, order default, 32 blocks, 8 splits of 512 keys: "},
      {even(128, 64, 1, 512), false, "decode, tiles of 16 queries, queued, order default, 132 blocks: "},
      {even(128, 0, 1, 512), false, "decode, tiles of 16 queries, queued, order default, 0 blocks: "},
      // Codes and latents have these kernels for more queries, too: order and scheduler are those of others
      // with so many.
      {of_codes(even(128, 64, 16, 4096, true)), false,
       "decode, tiles of 16 queries, queued, order default, 132 blocks: few queries: "},
      {of_codes(even(128, 8, 4096, 4096, true)), false,
       "decode, tiles of 16 queries, queued, order lpt, 132 blocks: tiles differ in cost: blocks take them "
       "from a queue, the longest first"},
      {of_codes(even(128, 8, 17, 17, true)), false,
       "decode, tiles of 16 queries, queued, order default, 64 blocks: tiles differ in cost: blocks take "
       "them "
       "from a queue, in order: all are short"},
      {of_codes(even(256, 8, 4096, 4096)), false,
       "decode, tiles of 16 queries, tile, order default, 132 blocks: all tiles cost the same"},
      {of_codes(ragged(64, 8, 4096, 4096)), false,
       "decode, tiles of 16 queries, queued, order lpt, 132 blocks: tiles differ in cost: "},
      {of_codes(even(128, 1, 512, 1 << 20, true)), false,
       "decode, tiles of 16 queries, queued, order lpt, 132 blocks, 9 splits of 116608 keys: "},
      {of_latents(even(128, 8, 4096, 4096, true)), false,
       "decode, tiles of 2 queries, queued, order lpt, 132 blocks: tiles differ in cost: "},
      {of_latents(even(128, 64, 2, 4096, true)), false,
       "decode, tiles of 2 queries, queued, order default, 128 blocks, 2 splits of 2048 keys: few queries: "},
  };
  for (const ChoiceRow& row : rows) {
    const std::string text = to_string(choose_attention(row.shape, row.has_key_lengths, kH200));
    EXPECT_EQ(text.substr(0, std::string(row.choice).size()), row.choice);
  }
  EXPECT_EQ(choose_attention(even(128, 8, 4096, 4096), false, kH200).reason, kEven);
}

TEST(AttentionChoice, WhatIsAskedForStays) {
  for (const TileSchedulerName& scheduler : kTileSchedulers)
    for (const OrderName& order : kOrders)
      for (const bool has_key_lengths : {false, true}) {
        AttentionShape shape = ragged(128, 3, 2000, 2000, true);
        shape.scheduler = scheduler.kind;
        shape.order = order.order;
        const AttentionChoice choice = choose_attention(shape, has_key_lengths, kH200);
        EXPECT_EQ(choice.scheduler, scheduler.kind);
        EXPECT_EQ(choice.order, order.order);
        EXPECT_EQ(choice.reason, "as asked");
        EXPECT_EQ(choice.num_blocks, scheduler.kind == TileSchedulerKind::kTransient ? 3u * 16 * 16 : 132u);
      }
}

TEST(AttentionChoice, TilesFollowFromTheKernelAndBlocksFromTheDevice) {
  AttentionShape shape = even(128, 2, 3, 4096);
  shape.num_heads = 40;  // ten heads for each K/V head
  const AttentionChoice decode = choose_attention(shape, false, kH200);
  EXPECT_EQ(decode.heads_per_tile, 10u);
  EXPECT_EQ(decode.tile_rows, 6u);
  EXPECT_EQ(decode.max_num_tiles, 1u);
  EXPECT_EQ(decode.num_splits, 8u);
  EXPECT_EQ(decode.split_keys, 512u);
  EXPECT_EQ(decode.tile_shape, (MHATileShape{6, 4 * 8, 132, (50 << 20) / 512, 1}));

  shape.num_blocks = 5;  // a budget
  const AttentionChoice few = choose_attention(shape, false, kH200);
  EXPECT_EQ(few.num_blocks, 5u);
  EXPECT_EQ(choose_attention(even(128, 8, 4096, 4096), false, {.num_multiprocessors = 7}).num_blocks, 7u);

  // Of fp8 the L2 holds twice as many rows; a latent is both key and value.
  const MHATileShape codes = choose_attention(of_codes(even(128, 2, 3, 4096)), false, kH200).tile_shape;
  EXPECT_EQ(codes.kv_rows_in_l2, (50u << 20) / 256);
  const MHATileShape latents = choose_attention(of_latents(even(128, 2, 3, 4096)), false, kH200).tile_shape;
  EXPECT_EQ(latents.kv_rows_in_l2, (50u << 20) / (kLatentDim * 2));
}

TEST(AttentionChoice, EveryKernelHasItsTuningAndSaysSo) {
  for (const int head_dim : {64, 128, 256})
    for (const AttentionKind kind : {AttentionKind::kFull, AttentionKind::kMasked, AttentionKind::kDecode})
      EXPECT_NE(attention_tuning(head_dim, kind), AttentionTuning{}) << head_dim << ' ' << to_string(kind);
  EXPECT_EQ(attention_tuning(128, AttentionKind::kShortMasked), AttentionTuning{});
  EXPECT_EQ(num_candidates(128, AttentionKind::kShortMasked), 0);
  EXPECT_EQ(to_string(attention_tuning(128, AttentionKind::kMasked)),
            "128 masked: 128x128, 2+2 stages, 384 threads, 4 ahead");
  EXPECT_EQ(to_string(attention_tuning(64, AttentionKind::kShortMasked)),
            "64 short masked: 128x64, 2+4 stages, 384 threads x 2 blocks, 4 ahead");
  EXPECT_EQ(to_string(attention_tuning(256, AttentionKind::kFull)),
            "256 full: 128x80 by 32, 1+2 stages, 384 threads, 2 ahead");
  for (const int head_dim : {64, 128, 256}) {
    const AttentionTuning codes = attention_tuning(head_dim, AttentionKind::kDecode, 0, KvFormat::kFP8);
    EXPECT_EQ(codes.tile_rows(), kWarpgroupRows) << "all consumers have the same rows";
    EXPECT_NE(to_string(codes).find(" decode of fp8: 64x128, "), std::string::npos) << to_string(codes);
  }
}

TEST(AttentionChoice, TheLengthChoosesAmongTheKernelsOfAKind) {
  const struct {
    int head_dim;
    AttentionKind kind;
    int64_t num_keys;
    const char* kernel;
  } rows[] = {
      {128, AttentionKind::kFull, 512, "128 full: 128x128, "},
      {128, AttentionKind::kFull, 12287, "128 full: 128x128, "},
      {128, AttentionKind::kFull, 12288, "128 full: 128x176, 1+2 stages"},
      {128, AttentionKind::kFull, 1 << 20, "128 full: 128x176, "},
      {128, AttentionKind::kMasked, 1 << 20, "128 masked: 128x128, "},
      {128, AttentionKind::kDecode, 1 << 20, "128 decode: 64x128, "},
      {64, AttentionKind::kFull, 1 << 20, "64 full: 192x128, "},
      {64, AttentionKind::kShortMasked, 512, "64 short masked: 128x64, "},
      {256, AttentionKind::kFull, 1 << 20, "256 full: 128x80 by 32, "},
  };
  for (const auto& row : rows) {
    const int candidate = choose_candidate(row.head_dim, row.kind, row.num_keys);
    const std::string kernel = to_string(attention_tuning(row.head_dim, row.kind, candidate));
    EXPECT_EQ(kernel.substr(0, std::string(row.kernel).size()), row.kernel) << row.num_keys;
  }
}

TEST(AttentionChoice, ACandidateThatIsAskedForRuns) {
  AttentionShape shape = even(128, 1, 16384, 16384);
  EXPECT_GT(choose_attention(shape, false, kH200).candidate, 0);
  shape.candidate = 0;
  EXPECT_EQ(choose_attention(shape, false, kH200).candidate, 0);
}

}  // namespace
}  // namespace switchyard
