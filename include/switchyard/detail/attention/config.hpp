// The sizes of each attention kernel, by head dimension and kind. One type per kernel: what it computes with
// is known when it is compiled.
#pragma once

#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/detail/target/warpgroup.hpp"

namespace switchyard {

enum class AttentionKind {
  kFull,    // every query sees every key
  kBanded,  // causal, sliding window, or both
  kDecode,  // few queries per sequence: the query heads of a K/V head share a tile, keys may be split over
            // blocks
  kShortBanded,  // banded, of short sequences: head dimension 64 only, whose wide tiles see too much in vain
                 // and whose blocks are small enough for two on a multiprocessor
};
inline constexpr int kNumAttentionKinds = 4;

inline constexpr int kMaxDecodeTokens = 16;
inline constexpr int kMaxShortLen = 1024;

// The kind for sequences of up to so many queries and keys.
constexpr AttentionKind kind_of_attention(int head_dim, int64_t max_query_len, int64_t max_key_len,
                                          bool is_banded) {
  if (max_query_len <= kMaxDecodeTokens) return AttentionKind::kDecode;
  if (!is_banded) return AttentionKind::kFull;
  const bool is_short = max_query_len <= kMaxShortLen && max_key_len <= kMaxShortLen;
  return head_dim == 64 && is_short ? AttentionKind::kShortBanded : AttentionKind::kBanded;
}

// Warps of the first warpgroup; the other warpgroups consume.
inline constexpr int kProducerWarp = 0;
inline constexpr int kPlannerWarp = 1;

template <int kHeadDimension, AttentionKind kKindOfAttention>
struct AttentionConfig {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr AttentionKind kKind = kKindOfAttention;
  static constexpr bool kIsDecode = kKind == AttentionKind::kDecode;
  static constexpr bool kIsBanded = kKind != AttentionKind::kFull;
  static constexpr bool kIsShort = kKind == AttentionKind::kShortBanded;

  static constexpr bool kIsWide = kHeadDim == 64 && !kIsShort;
  static constexpr int kNumConsumers = kIsDecode ? 1 : kIsWide ? 3 : 2;  // warpgroups
  static constexpr int kTileRows = kNumConsumers * kWarpgroupRows;
  static constexpr int kTileKeys = kIsShort ? 64 : kHeadDim == 256 ? (kIsDecode ? 64 : 80) : 128;
  // Parts of a tile's last block that no row sees are left out of its products. Not where scores are started
  // early, or beside the code of masks: the assembler makes all products wait for each other then.
  static constexpr int kPartKeys = kHeadDim == 256 && !kIsBanded ? 32 : kTileKeys;
  // A second block works while the first one begins or ends a tile.
  static constexpr int kBlocksPerMultiprocessor = kIsShort ? 2 : 1;
  // A block's scores run beside the sums of the one before it; two on a multiprocessor have no registers for
  // it.
  static constexpr bool kOverlapsBlocks = kBlocksPerMultiprocessor == 1;
  // Two stages let the next tile's queries come early.
  static constexpr int kNumQueryStages = kHeadDim == 256 ? 1 : 2;
  static constexpr int kNumKeyStages = kIsDecode ? (kHeadDim == 64 ? 6 : 3) : kIsShort ? 4 : 2;

  // Consumers take turns at the matrix unit: one multiplies while the others exponentiate.
  static constexpr bool kTakesTurns = kNumConsumers > 2;

  static constexpr int kNumThreads = (1 + kNumConsumers) * kWarpgroupThreads;
  static constexpr int kNumResidentThreads = kBlocksPerMultiprocessor * kNumThreads;
  // Together no more than a block of so many threads is launched with: 168 each of 3 warpgroups, 128 each
  // of 4, 80 each of 2 x 3.
  static constexpr int kProducerRegisters = kIsShort             ? 40
                                            : kNumConsumers == 3 ? 32
                                            : kHeadDim == 256    ? 24
                                                                 : 40;
  static constexpr int kConsumerRegisters = kIsShort             ? 96
                                            : kNumConsumers == 3 ? 160
                                            : kHeadDim == 256    ? 240
                                                                 : 232;

  static constexpr int kNumPanels = kHeadDim / kPanelColumns;
  static constexpr uint32_t kQueryBytes = kTileRows * kHeadDim * 2;
  static constexpr uint32_t kKeyBytes = kTileKeys * kHeadDim * 2;
};

}  // namespace switchyard
