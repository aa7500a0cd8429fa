// An attention kernel as a type: what it computes with is known at compile time. The numbers are those of its
// tuning.
#pragma once

#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/target/vocabulary.hpp"

namespace switchyard {

// These are warps of the first warpgroup; the other warpgroups consume.
inline constexpr int kProducerWarp = 0;
inline constexpr int kPlannerWarp = 1;

// Of keys and values as codes, a warp multiplies so many rows and keys at once.
inline constexpr int kRowsOfWarp = 16, kKeysOfWarp = 16;

template <AttentionTuning kTuningOfKernel, ScoreKind kScoreKind = ScoreKind::kPlain>
struct AttentionConfig {
  static constexpr AttentionTuning kTuning = kTuningOfKernel;
  static_assert(kTuning != AttentionTuning{}, "kAttentionTunings has no such kernel");

  static constexpr int kHeadDim = kTuning.head_dim;
  static constexpr AttentionKind kKind = kTuning.kind;
  static constexpr bool kIsDecode = kKind == AttentionKind::kDecode;
  static constexpr bool kAdjustsScores = kScoreKind == ScoreKind::kAdjusted;
  static constexpr bool kIsMasked = kKind != AttentionKind::kFull;

  static constexpr int kNumConsumers = kTuning.num_consumers;
  static constexpr int kTileRows = kTuning.tile_rows();
  static constexpr int kTileKeys = kTuning.tile_keys;
  // Beside the code that caps scores the assembler would serialise all products of parts.
  static constexpr int kPartKeys = kAdjustsScores ? kTileKeys : kTuning.part_keys;
  static constexpr int kBlocksAhead = kTuning.blocks_ahead;
  static constexpr int kNumQueryStages = kTuning.num_query_stages;
  static constexpr int kNumKeyStages = kTuning.num_key_stages;
  static constexpr int kProducerRegisters = kTuning.producer_registers;
  static constexpr int kConsumerRegisters = kTuning.consumer_registers;

  static constexpr bool kOverlapsBlocks = kTuning.blocks_per_multiprocessor == 1;
  static constexpr bool kPingPongs = kTuning.turns != Turns::kNone;
  static constexpr bool kStagesOutput = kTuning.stages_output;
  static constexpr int kStagedRowBytes = kHeadDim * 2 + 16;  // so that rows begin in different banks

  static constexpr int kNumThreads = kTuning.num_threads();
  static constexpr int kNumResidentThreads = kTuning.blocks_per_multiprocessor * kNumThreads;

  static constexpr int kNumPanels = kHeadDim / kPanelColumns;
  // Keys and values as codes: a panel has twice as many columns.
  static constexpr bool kHasCodes = kTuning.has_codes();
  static constexpr int kNumKeyPanels = kHasCodes ? (kNumPanels + 1) / 2 : kNumPanels;
  static constexpr uint32_t kQueryBytes = kTileRows * kHeadDim * 2;
  static constexpr uint32_t kKeyBytes = kTileKeys * kNumKeyPanels * kPanelRowBytes;
  // What a warp hands to another at the end of a tile of codes: its sums, maxima and sums of weights.
  static constexpr uint32_t kSumBytes = (kHeadDim / 8 + 1) * kWarpSize * sizeof(Vec16);
};

}  // namespace switchyard
