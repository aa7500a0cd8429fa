// The sizes of one kernel, derived from its tuning.
#pragma once

#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/warpgroup.hpp"
#include "switchyard/types/matmul_epilogue.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// How rows come into the stages: the copy engine loads them, or warps that nothing else needs decode them.
enum class RowLoading { kCopied, kDecoded };

template <MatmulTuning kTuningOfKernel, MatmulEpilogue kEpilogueOfKernel = MatmulEpilogue::kPlain,
          RowLoading kRowLoading = RowLoading::kCopied>
struct MatmulConfig {
  static constexpr MatmulTuning kTuning = kTuningOfKernel;
  static constexpr MatmulEpilogue kEpilogue = kEpilogueOfKernel;
  static constexpr int kTileRows = kTuning.tile_rows;
  static constexpr int kTileColumns = kTuning.tile_columns;
  static constexpr int kNumStages = kTuning.num_stages;
  static constexpr int kStageInner = kTuning.stage_inner;
  // The copy engine and the layout of shared memory count in pairs of bytes, whatever the elements are.
  static constexpr int kNumPanels = kStageInner * bytes_of(kTuning.element) / kPanelRowBytes;
  static constexpr int kStagePairs = kNumPanels * kPanelColumns;
  static_assert(kNumPanels * kPanelRowBytes == kStageInner * bytes_of(kTuning.element));

  // Products of fp8 are scaled and added up stage by stage.
  static constexpr bool kIsScaled = kTuning.element == MatmulElement::kFP8;
  static_assert(!kIsScaled || kStageInner == kMatmulScaleGroup);

  // Coded weights have one panel in a stage.
  static constexpr WeightFormat kWeights = kTuning.weights;
  static constexpr bool kIsCoded = is_coded(kWeights);
  static constexpr int kNumWeightPanels = kIsCoded ? 1 : kNumPanels;
  static_assert(!kIsCoded || kStageInner * code_bits_of(kWeights) == 8 * kPanelRowBytes);
  static_assert(!kIsCoded || (kTuning.element == MatmulElement::kBF16 && kTuning.tile_columns % 128 == 0));

  static constexpr bool kSharesWeights = target::kHasClusters && kTuning.sharing == MatmulSharing::kWeights;
  static constexpr bool kSharesRows = target::kHasClusters && kTuning.sharing == MatmulSharing::kRows;
  static constexpr bool kIsPair = kSharesWeights || kSharesRows;
  static constexpr int kClusterBlocks = kIsPair ? 2 : 1;

  static constexpr bool kSplitsRows = kTileRows > kWarpgroupRows && !kIsCoded;
  static constexpr int kNumConsumers = kTuning.num_consumers();
  static constexpr int kConsumerColumns = kSplitsRows ? kTileColumns : kTileColumns / kNumConsumers;
  static constexpr int kNumThreads = kTuning.num_threads();
  static_assert(kNumThreads == (1 + kNumConsumers) * kWarpgroupThreads);
  static constexpr bool kMovesRegisters = kNumConsumers > 1;

  // The first warp of a block loads, the second plans, and the last two of their warpgroup may decode.
  static constexpr bool kDecodesRows = kRowLoading == RowLoading::kDecoded;
  static constexpr int kNumDecoderWarps = kDecodesRows ? 2 : 0;
  static constexpr int kNumDecoders = kNumDecoderWarps * kWarpSize;
  static_assert(!kDecodesRows || (kTuning.element == MatmulElement::kBF16 && !kIsPair));

  // A thread that decodes needs more registers than one that loads, and those that multiply have them.
  static constexpr int kProducerRegisters = kTuning.producer_registers() + (kDecodesRows ? 16 : 0);
  static constexpr int kConsumerRegisters = kTuning.consumer_registers() - (kDecodesRows ? 8 : 0);

  // Rows are loaded in boxes, only as many as there are rows.
  static constexpr int kBoxRows = kTileRows < 32 ? 8 : kTileRows / 4;
  static constexpr int kBoxBytes = kBoxRows * kPanelRowBytes;
  static constexpr int kRowPanelBytes = kTileRows * kPanelRowBytes;
  static constexpr int kWeightPanelBytes = kTileColumns * kPanelRowBytes;

  // With an activation, the first half of a consumer's columns are gates, and the second half their ups.
  static constexpr bool kIsGated =
      kEpilogue == MatmulEpilogue::kGated || kEpilogue == MatmulEpilogue::kGatedFP8;
  static constexpr int kOutputColumns = kIsGated ? kConsumerColumns / 2 : kConsumerColumns;  // of a consumer
  static constexpr int kWeightBoxRows = kIsGated         ? kOutputColumns
                                        : kSharesWeights ? kTileColumns / 2
                                                         : kTileColumns;
  static constexpr bool kStoresFP8 = kEpilogue == MatmulEpilogue::kGatedFP8;
  // Two consumers have half of an output's scale group each.
  static constexpr bool kSplitsScaleGroup = kStoresFP8 && kOutputColumns < kMatmulScaleGroup;
  static_assert(!kStoresFP8 || kOutputColumns * (kSplitsScaleGroup ? 2 : 1) == kMatmulScaleGroup);
  // Rows of fp8 have whole scale groups in every consumer.
  static constexpr bool kStoresFP8Rows = kEpilogue == MatmulEpilogue::kAffineFP8;
  static_assert(!kStoresFP8Rows || (kOutputColumns % kMatmulScaleGroup == 0 && !kIsCoded));
  // The columns of a consumer that share a scale.
  static constexpr int kOutputGroup = kOutputColumns < kMatmulScaleGroup ? kOutputColumns : kMatmulScaleGroup;

  // Columns of a consumer that are multiplied and then scaled together, and how many such there are.
  static_assert(!kIsScaled || kConsumerColumns % kMatmulScaleGroup == 0);
  static constexpr int kColumnGroup = kIsScaled ? kMatmulScaleGroup : kConsumerColumns;
  static constexpr int kNumColumnGroups = kConsumerColumns / kColumnGroup;
  // How many scales of the weights they have: one; with gates and ups one for every 64 columns, where a scale
  // may end.
  static constexpr int kScalesPerGroup = kIsScaled && kIsGated ? kColumnGroup / 64 : 1;
  static constexpr int kNumScales = kNumColumnGroups * kScalesPerGroup;

  // A band has about as many rows as all blocks of a GPU then have columns.
  static constexpr int kBandTiles = 2048 / kTileRows / (kSharesWeights ? 2 : 1);
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
