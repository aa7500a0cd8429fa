// The producer of a block of the tiled matmul: one thread that prefetches rows and weights, as far ahead of
// the consumers as there are stages.
#pragma once

#include "switchyard/detail/gemm/tiled/arrivals.hpp"
#include "switchyard/detail/gemm/tiled/kernel_params.hpp"
#include "switchyard/detail/gemm/tiled/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, MatmulArrivals Arrivals>
class MatmulProducer {
 public:
  SWITCHYARD_DEVICE MatmulProducer(const MatmulParams& params, MatmulShared<Config>& shared)
      : params_(params),
        shared_(shared),
        num_steps_(ceil_div(params.settings.inner, uint32_t{Config::kStageInner})) {}

  SWITCHYARD_DEVICE void run() {
    for (;;) {
      // acquire MM-22: the next tile; pairs with the release in the planner's run()
      wait_for_phase(shared_.tile_full, tiles_.parity());
      tiles_.advance();
      const MatmulTile tile = target::ld(&shared_.tile);
      if (!tile.is_tile) return;
      // The planner has seen by ordinary loads that the rows are there; the copy engine reads them.
      if constexpr (Arrivals::kAwaits) target::fence_proxy_async();
      const uint32_t ask_step = num_steps_ > kStepsAhead ? num_steps_ - kStepsAhead : 0;
      for (uint32_t step = 0; step < num_steps_; ++step) {
        // release MM-23: the tile was read; pairs with the planner's wait before it takes the next one
        if (step == ask_step) shared_.tile_empty.arrive();
        load(tile, step);
      }
    }
  }

 private:
  // When so many steps are left to load the planner is asked for the next tile: early enough that it arrives
  // in time, and late enough that a block does not take from the queue what another could begin sooner.
  static constexpr uint32_t kStepsAhead = ceil_div<uint32_t>(8, Config::kNumPanels);

  SWITCHYARD_DEVICE void load(const MatmulTile& tile, uint32_t step) {
    const int inner = static_cast<int>(step * Config::kStagePairs);
    const int inner_of_weights = Config::kIsCoded ? static_cast<int>(step * kPanelColumns) : inner;
    const uint32_t stage = stages_.stage();
    // acquire MM-25: the consumers have read the stage; pairs with their release()
    wait_for_phase(shared_.empty[stage], stages_.parity() ^ 1);
    stages_.advance();
    const int num_boxes =
        Config::kDecodesRows ? 0 : (tile.num_rows + Config::kBoxRows - 1) / Config::kBoxRows;
    target::TransferBarrier& full = shared_.full[stage];
    // release MM-24: the stage, once the loads are complete; pairs with the consumers' waits for `full`
    full.arrive_expect(static_cast<uint32_t>(Config::kNumPanels * num_boxes * Config::kBoxBytes +
                                             Config::kNumWeightPanels * Config::kWeightPanelBytes));
    SWITCHYARD_UNROLL
    for (int panel = 0; panel < Config::kNumWeightPanels; ++panel)
      load_weights(tile, inner_of_weights + panel * kPanelColumns,
                   shared_.weights[stage] + panel * Config::kWeightPanelBytes, full);
    if constexpr (!Config::kDecodesRows) {
      SWITCHYARD_UNROLL
      for (int panel = 0; panel < Config::kNumPanels; ++panel)
        load_rows(tile, num_boxes, inner + panel * kPanelColumns,
                  shared_.rows[stage] + panel * Config::kRowPanelBytes, full);
    }
  }
  SWITCHYARD_DEVICE void load_rows(const MatmulTile& tile, int num_boxes, int inner, unsigned char* panel,
                                   target::TransferBarrier& full) {
    const int first_row = static_cast<int>(tile.first_row);
    if constexpr (Config::kSharesRows) {
      for (int box = static_cast<int>(target::cluster_block_idx()); box < num_boxes;
           box += Config::kClusterBlocks)
        target::tensor_load_to_pair(panel + box * Config::kBoxBytes, params_.rows, inner,
                                    first_row + box * Config::kBoxRows, 0, full, CacheHint::kKeep);
    } else {
      for (int box = 0; box < num_boxes; ++box)
        target::tensor_load_first(
            panel + box * Config::kBoxBytes, params_.rows, inner, first_row + box * Config::kBoxRows, 0,
            static_cast<uint32_t>(tile.num_rows - box * Config::kBoxRows), full, CacheHint::kKeep);
    }
  }
  SWITCHYARD_DEVICE void load_weights(const MatmulTile& tile, int inner, unsigned char* panel,
                                      target::TransferBarrier& full) {
    const CacheHint keep = tile.is_alone ? CacheHint::kStream : CacheHint::kKeep;
    const int column = static_cast<int>(tile.first_column);
    if constexpr (Config::kIsGated) {
      load_gates_and_ups(tile, inner, panel, full, keep);
    } else if constexpr (Config::kSharesWeights) {
      const int half = static_cast<int>(target::cluster_block_idx()) * Config::kWeightBoxRows;
      target::tensor_load_to_pair(panel + half * kPanelRowBytes, params_.weights, inner, column + half,
                                  tile.expert, full, keep);
    } else {
      target::tensor_load(panel, params_.weights, inner, column, tile.expert, full, keep);
    }
  }

  // Boxes of gates and boxes of their ups alternate. The tensor map has the gates of an expert in one of its
  // rows and the ups in the next.
  SWITCHYARD_DEVICE void load_gates_and_ups(const MatmulTile& tile, int inner, unsigned char* panel,
                                            target::TransferBarrier& full, CacheHint keep) {
    const MatmulSettings& settings = params_.settings;
    const int map_rows =
        settings.gate_layout == GateLayout::kStacked ? 2 : static_cast<int>(settings.columns);
    SWITCHYARD_UNROLL
    for (int box = 0; box < Config::kTileColumns / Config::kWeightBoxRows; ++box)
      target::tensor_load(panel + box * Config::kWeightBoxRows * kPanelRowBytes, params_.weights, inner,
                          static_cast<int>(tile.first_column) / 2 + box / 2 * Config::kWeightBoxRows,
                          tile.expert * map_rows + box % 2, full, keep);
  }

  const MatmulParams& params_;
  MatmulShared<Config>& shared_;
  const uint32_t num_steps_;
  StageCursor<1> tiles_;
  StageCursor<Config::kNumStages> stages_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
