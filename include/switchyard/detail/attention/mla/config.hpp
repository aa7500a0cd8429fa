// The kernel of multi-head latent attention (MLA) as a type: all heads share one row per key, the latent,
// whose first columns are the values.
#pragma once

#include "switchyard/detail/attention/tuning.hpp"

namespace switchyard {

// The columns of a latent that one barrier hands over, in panels. The first consumer reads all of them for
// the scores; the values are the left and the right strip, of which each consumer sums up one.
struct LatentStrip {
  int first_panel;
  int num_panels;
};

template <AttentionTuning kTuningOfKernel>
struct MlaConfig {
  static constexpr AttentionTuning kTuning = kTuningOfKernel;
  static constexpr int kNumConsumers = kTuning.num_consumers;
  static_assert(kNumConsumers == 2 && kTuning.value_dim % (kNumConsumers * kPanelColumns) == 0);

  static constexpr AttentionKind kKind = AttentionKind::kDecode;
  static constexpr bool kIsDecode = true;
  static constexpr bool kAdjustsScores = false;

  static constexpr int kLatentDim = kTuning.head_dim;
  static constexpr int kValueDim = kTuning.value_dim;
  static constexpr int kHeadDim = kValueDim / kNumConsumers;  // what one consumer sums up
  static constexpr int kTileRows = kTuning.tile_rows();       // all consumers have the same rows
  static constexpr int kTileKeys = kTuning.tile_keys;
  static constexpr int kPartKeys = kTuning.part_keys;
  static constexpr int kBlocksAhead = kTuning.blocks_ahead;
  static constexpr int kNumQueryStages = kTuning.num_query_stages;
  static constexpr int kNumKeyStages = kTuning.num_key_stages;
  static constexpr int kProducerRegisters = kTuning.producer_registers;
  // The second consumer computes no scores: together they have what a block of 3 warpgroups is launched with.
  static constexpr int kFirstConsumerRegisters = kTuning.consumer_registers;
  static constexpr int kSecondConsumerRegisters = kFirstConsumerRegisters - 16;
  static constexpr int kNumThreads = kTuning.num_threads();

  static constexpr int kNumPanels = kLatentDim / kPanelColumns;
  static constexpr int kValuePanels = kHeadDim / kPanelColumns;  // of one consumer
  static constexpr uint32_t kQueryBytes = kTileRows * kLatentDim * 2;
  static constexpr uint32_t kLatentBytes = kTileKeys * kLatentDim * 2;
  static constexpr uint32_t kWeightBytes = kTileRows * kTileKeys * 2;

  // In the order in which they become free, are loaded, and are multiplied.
  static constexpr int kRest = 0, kLeft = 1, kRight = 2, kNumStrips = 3;
  static constexpr LatentStrip panels_of(int strip) {
    return strip == kRest ? LatentStrip{2 * kValuePanels, kNumPanels - 2 * kValuePanels}
                          : LatentStrip{strip == kLeft ? 0 : kValuePanels, kValuePanels};
  }
};

}  // namespace switchyard
