// The numbers of the attention kernels: which kernels there are, how each is cut into tiles and stages, and
// the limits by which a launch is chosen. Plain structs that can be compared and printed.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/detail/target/tensor_shape.hpp"
#include "switchyard/detail/target/warpgroup.hpp"
#include "switchyard/types/attention_kind.hpp"

namespace switchyard {

// What a kernel does with scores besides scaling and masking them: nothing, or what the launch asks for: a
// soft cap, sinks.
enum class ScoreKind { kPlain, kAdjusted };

// Multi-head latent attention: the columns of a latent, and how many of them are values.
inline constexpr int kLatentDim = 576, kLatentValueDim = 512;

// When a consumer leaves the matrix unit to the next one, once per key block.
enum class Turns {
  kNone,     // never: consumers do not take turns
  kStarted,  // when its products are started
};
constexpr const char* to_string(Turns turns) {
  constexpr const char* kNames[] = {"none", "started"};
  return kNames[static_cast<int>(turns)];
}

// One kernel. A block is one warpgroup that plans and loads, and others that consume.
struct AttentionTuning {
  int head_dim = 0;
  AttentionKind kind = AttentionKind::kFull;
  int num_consumers = 0;  // warpgroups, 64 rows of a tile each
  int tile_keys = 0;      // of a key block
  // Parts of a tile's last key block that no row sees are left out of its products. Not where scores are
  // started early, or beside the code of masks: there the assembler would serialise all products.
  int part_keys = 0;
  // A second block works while the first one begins or ends a tile; two blocks have no registers to keep the
  // scores of one key block in flight beside the sums of the previous one.
  int blocks_per_multiprocessor = 0;
  int num_query_stages = 0;  // two let the next tile's queries come early
  int num_key_stages = 0;
  // When so many key blocks are left to load the planner is asked for the next tile: early enough that it
  // arrives in time, and late enough that a block does not take from the queue what another could begin
  // sooner. Small key blocks take half the time.
  int blocks_ahead = 0;
  // The registers together must not exceed what a block of so many threads is launched with: 168 each of 3
  // warpgroups, 128 each of 4, 80 each of 2 x 3.
  int producer_registers = 0;
  int consumer_registers = 0;
  CacheHint key_hint = CacheHint::kKeep;  // of keys and values; decoding reads them once
  Turns turns = Turns::kNone;             // three consumers need them, two do better without
  bool stages_output = false;             // in shared memory, so that whole rows are stored at once
  // Above 0: values are the first so many columns of the keys, and all consumers have the same rows, with
  // their share of these columns each (attention/mla/).
  int value_dim = 0;

  // Fp8: all warps of the consumers share the rows and the keys of a tile (attention/codes/).
  KvFormat kv_format = KvFormat::kBF16;

  constexpr bool has_codes() const { return kv_format == KvFormat::kFP8; }
  constexpr int tile_rows() const {
    return (value_dim > 0 || has_codes() ? 1 : num_consumers) * kWarpgroupRows;
  }
  constexpr int num_threads() const { return (1 + num_consumers) * kWarpgroupThreads; }
  friend constexpr bool operator==(const AttentionTuning&, const AttentionTuning&) = default;
};

// Every kernel there is. Those of one head dimension and kind are candidates, which have the same rows in a
// tile: the first runs where nothing speaks for another (choose_candidate()).
inline constexpr AttentionTuning kAttentionTunings[] = {
    // clang-format off
    // head_dim, kind                 consumers, tile_keys, part_keys, blocks, query and key stages, ahead, registers,
    // .. hint, turns, stages_output, value_dim, format of keys and values
    {64,  AttentionKind::kFull,        3, 128, 128, 1, 2, 2, 4, 32, 160, CacheHint::kKeep, Turns::kStarted, true},
    {64,  AttentionKind::kMasked,      3, 128, 128, 1, 2, 2, 4, 32, 160, CacheHint::kKeep, Turns::kStarted, true},
    {64,  AttentionKind::kDecode,      1, 128, 128, 1, 2, 6, 2, 40, 232, CacheHint::kStream},
    {64,  AttentionKind::kShortMasked, 2,  64,  64, 2, 2, 4, 4, 40,  96},
    {128, AttentionKind::kFull,        2, 128, 128, 1, 2, 2, 2, 40, 232},
    {128, AttentionKind::kFull,        2, 176, 176, 1, 1, 2, 2, 24, 240},
    {128, AttentionKind::kMasked,      2, 128, 128, 1, 2, 2, 4, 40, 232},
    {128, AttentionKind::kDecode,      1, 128, 128, 1, 2, 3, 2, 40, 232, CacheHint::kStream},
    {256, AttentionKind::kFull,        2,  80,  32, 1, 1, 2, 2, 24, 240},
    {256, AttentionKind::kMasked,      2,  80,  80, 1, 1, 2, 2, 24, 240},
    {256, AttentionKind::kDecode,      1,  64,  64, 1, 1, 3, 2, 24, 240, CacheHint::kStream},
    {kLatentDim, AttentionKind::kDecode,      2,  64,  64, 1, 1, 2, 2, 40, 240, CacheHint::kNormal,
     Turns::kNone, false, kLatentValueDim},
    {64,  AttentionKind::kDecode,      2, 128, 128, 1, 2, 5, 2, 40, 232, CacheHint::kStream, Turns::kNone, false, 0,
     KvFormat::kFP8},
    {128, AttentionKind::kDecode,      2, 128, 128, 1, 2, 4, 2, 40, 232, CacheHint::kStream, Turns::kNone, false, 0,
     KvFormat::kFP8},
    {256, AttentionKind::kDecode,      2, 128, 128, 1, 1, 2, 2, 40, 232, CacheHint::kStream, Turns::kNone, false, 0,
     KvFormat::kFP8},
    // clang-format on
};

inline constexpr int kMaxCandidates = 4;

// Returns a kernel of a head dimension, a kind and a format of keys; all 0: there is none.
constexpr AttentionTuning attention_tuning(int head_dim, AttentionKind kind, int candidate = 0,
                                           KvFormat format = KvFormat::kBF16) {
  for (const AttentionTuning& tuning : kAttentionTunings)
    if (tuning.head_dim == head_dim && tuning.kind == kind && tuning.kv_format == format && candidate-- == 0)
      return tuning;
  return {};
}
constexpr int num_candidates(int head_dim, AttentionKind kind, KvFormat format = KvFormat::kBF16) {
  int count = 0;
  while (attention_tuning(head_dim, kind, count, format) != AttentionTuning{}) ++count;
  return count;
}

// Formats as "128 masked: 128x128, 2+2 stages, 384 threads, 4 ahead, turns started": rows and keys of a
// tile, stages of queries and of keys.
inline std::string to_string(const AttentionTuning& tuning) {
  return std::to_string(tuning.head_dim) + " " + to_string(tuning.kind) +
         (tuning.has_codes() ? " of fp8: " : ": ") + std::to_string(tuning.tile_rows()) + "x" +
         std::to_string(tuning.tile_keys) +
         (tuning.part_keys < tuning.tile_keys ? " by " + std::to_string(tuning.part_keys) : "") + ", " +
         std::to_string(tuning.num_query_stages) + "+" + std::to_string(tuning.num_key_stages) + " stages, " +
         std::to_string(tuning.num_threads()) + " threads" +
         (tuning.blocks_per_multiprocessor > 1
              ? " x " + std::to_string(tuning.blocks_per_multiprocessor) + " blocks"
              : "") +
         ", " + std::to_string(tuning.blocks_ahead) + " ahead" +
         (tuning.turns != Turns::kNone ? std::string(", turns ") + to_string(tuning.turns) : "") +
         (tuning.stages_output ? ", staged output" : "");
}

// The limits by which a launch is chosen (runtime/attention_choice.hpp).
struct AttentionLimits {
  int max_decode_tokens = 16;       // queries of a sequence that are decoded
  int max_short_len = 1024;         // queries and keys of a short sequence
  int min_wide_block_keys = 12288;  // full attention: from so many keys on, the widest key blocks there are
  int min_tiles_for_lpt = 8;        // in a sequence's length: shorter ones end evenly in any order
  int units_per_block = 8;          // decoding: splits are made until each block has so many, on average
  int min_split_keys = 512;         // where there would be blocks without work
  int min_even_split_keys = 4096;   // where all have some, and splits even it out; more for several rows:
  int keys_per_row = 64;
  int max_splits = 128;
  int latent_tile_blocks = 3;     // what a tile of latents costs beside its key blocks, in these
  int latent_rows_per_block = 8;  // rows of partial output that cost as much as a key block
  int num_plan_threads = 128;

  friend constexpr bool operator==(const AttentionLimits&, const AttentionLimits&) = default;
};
inline constexpr AttentionLimits kAttentionLimits;

// Returns the kind for sequences of up to so many queries and keys. Codes and latents have kernels of one
// kind only, which takes any number of queries.
constexpr AttentionKind kind_of_attention(int head_dim, int64_t max_query_len, int64_t max_key_len,
                                          bool is_masked, KvFormat format = KvFormat::kBF16) {
  constexpr AttentionLimits kLimits = kAttentionLimits;
  if (max_query_len <= kLimits.max_decode_tokens || head_dim == kLatentDim || format == KvFormat::kFP8)
    return AttentionKind::kDecode;
  if (!is_masked) return AttentionKind::kFull;
  const bool is_short = max_query_len <= kLimits.max_short_len && max_key_len <= kLimits.max_short_len;
  return head_dim == 64 && is_short ? AttentionKind::kShortMasked : AttentionKind::kMasked;
}

// Returns which kernel of a kind runs for sequences of up to so many keys: the first, and for long ones the
// one with the widest key blocks.
constexpr int choose_candidate(int head_dim, AttentionKind kind, int64_t max_key_len) {
  if (kind != AttentionKind::kFull || max_key_len < kAttentionLimits.min_wide_block_keys) return 0;
  int widest = 0;
  for (int i = 1; i < num_candidates(head_dim, kind); ++i)
    if (attention_tuning(head_dim, kind, i).tile_keys > attention_tuning(head_dim, kind, widest).tile_keys)
      widest = i;
  return widest;
}

}  // namespace switchyard
