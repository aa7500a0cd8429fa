// A consumer of a block of the tiled matmul: a warpgroup with 64 rows, or some columns, of every tile.
#pragma once

#include <type_traits>

#include "switchyard/detail/gemm/tiled/kernel_params.hpp"
#include "switchyard/detail/gemm/tiled/shared.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/gemm/tiled/warpgroup_product.cuh"
#else
#include "switchyard/detail/gemm/tiled/host_product.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class MatmulConsumer {
 public:
  // consumer_idx: this warpgroup among the consumers.
  SWITCHYARD_DEVICE MatmulConsumer(const MatmulSettings& settings, MatmulShared<Config>& shared,
                                   int consumer_idx)
      : settings_(settings),
        shared_(shared),
        consumer_idx_(consumer_idx),
        first_row_(Config::kSplitsRows ? consumer_idx * kWarpgroupRows : 0),
        first_column_(Config::kSplitsRows ? 0 : consumer_idx * Config::kConsumerColumns),
        num_steps_(ceil_div(settings.inner, uint32_t{Config::kStageInner})) {}

  SWITCHYARD_DEVICE void run() {
    if (consumer_idx_ == 1) pass_turn();  // the first one is the other's
    for (;;) {
      const MatmulTile tile = take_tile();
      if (!tile.is_tile) break;
      if (first_row_ < tile.num_rows) {
        if constexpr (Config::kIsScaled)
          multiply_scaled(tile);
        else
          multiply(tile.num_rows - first_row_);
        store(tile);
      } else {
        pass_over();
      }
    }
    if (consumer_idx_ == 0) take_turn();  // the last one was passed on to nobody else
  }

 private:
  static constexpr uint32_t kFirstTurnBarrier = 1;  // a named barrier for each consumer

  SWITCHYARD_DEVICE void take_turn() {
    if constexpr (Config::kTakesTurns)
      target::named_barrier_sync(kFirstTurnBarrier + consumer_idx_, 2 * kWarpgroupThreads);
  }
  SWITCHYARD_DEVICE void pass_turn() {
    if constexpr (Config::kTakesTurns)
      target::named_barrier_arrive(kFirstTurnBarrier + (1 - consumer_idx_), 2 * kWarpgroupThreads);
  }

  // One lane waits for the tile, reads it and tells the others. (A lane that looked at tile_full after the
  // arrival below would miss the barrier phase and wait forever.)
  SWITCHYARD_DEVICE MatmulTile take_tile() {
    MatmulTile tile{};
    if (target::lane_idx() == 0) {
      // acquire MM-22: the next tile; pairs with the release in the planner's run()
      wait_for_phase(shared_.tile_full, tiles_.parity());
      tile = target::ld(&shared_.tile);
      // release MM-23: the tile was read; pairs with the planner's wait before it writes the next one
      shared_.tile_empty.arrive();
    }
    tiles_.advance();
    const uint32_t packed = target::shuffle(
        uint32_t{tile.num_rows} | uint32_t{tile.is_tile} << 16 | uint32_t{tile.is_alone} << 17, 0);
    return {.first_row = target::shuffle(tile.first_row, 0),
            .first_column = target::shuffle(tile.first_column, 0),
            .expert = target::shuffle(tile.expert, 0),
            .num_rows = static_cast<uint16_t>(packed),
            .is_tile = (packed >> 16 & 1) != 0,
            .is_alone = (packed >> 17 & 1) != 0};
  }

  // A step's products are in flight while those of the previous one end and release their stage.
  SWITCHYARD_DEVICE void multiply(int num_rows) {
    uint32_t last_stage = 0;
    SWITCHYARD_ROLLED
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      // acquire MM-24: the stage; pairs with the release in the producer's load()
      wait_for_phase(shared_.full[stage], stages_.parity());
      stages_.advance();
      product_.start(shared_.rows[stage] + first_row_ * kPanelRowBytes,
                     shared_.weights[stage] + first_column_ * kPanelRowBytes, step != 0, num_rows);
      product_.template wait<1>();
      if (step != 0) release(last_stage);
      last_stage = stage;
    }
    product_.template wait<0>();
    release(last_stage);
  }

  // The same for fp8, whose products are scaled before they are added to those of other stages: the matrix
  // unit keeps too few bits of a long sum. The other consumer's products are in flight meanwhile.
  SWITCHYARD_DEVICE void multiply_scaled(const MatmulTile& tile) {
    const int num_rows = tile.num_rows - first_row_;
    const int first_scale = static_cast<int>(tile.first_row % 4) + first_row_;
    const float* weight_scales[Config::kNumColumnGroups];
    float next_scales[Config::kNumColumnGroups];
    SWITCHYARD_UNROLL
    for (int group = 0; group < Config::kNumColumnGroups; ++group) {
      weight_scales[group] = weight_scales_of(tile, group);
      next_scales[group] = target::ld(weight_scales[group]);
    }
    product_.clear();
    SWITCHYARD_ROLLED
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      // acquire MM-24: the stage; pairs with the release in the producer's load()
      wait_for_phase(shared_.full[stage], stages_.parity());
      stages_.advance();
      SWITCHYARD_UNROLL
      for (int group = 0; group < Config::kNumColumnGroups; ++group) {
        const int column = first_column_ + group * Config::kColumnGroup;
        take_turn();
        product_.start(shared_.rows[stage] + first_row_ * kPanelRowBytes,
                       shared_.weights[stage] + column * kPanelRowBytes, num_rows);
        pass_turn();
        const float scale = next_scales[group];
        if (step + 1 < num_steps_) next_scales[group] = target::ld(weight_scales[group] + step + 1);
        if (group == 0) product_.load_row_scales(shared_.row_scales[stage] + first_scale, num_rows);
        product_.wait();
        if (group == Config::kNumColumnGroups - 1) {
          target::fence_proxy_async_shared();  // the scales were read before the next load may write there
          release(stage);
        }
        product_.add_scaled(group, scale);
      }
    }
  }
  // Returns the scales of a group of this consumer's columns, one for each step.
  SWITCHYARD_DEVICE const float* weight_scales_of(const MatmulTile& tile, int group) const {
    const uint32_t num_column_groups = ceil_div(settings_.columns, uint32_t{kMatmulScaleGroup});
    uint32_t column_group = (tile.first_column + static_cast<uint32_t>(first_column_)) / kMatmulScaleGroup +
                            static_cast<uint32_t>(group);
    if (column_group >= num_column_groups) column_group = num_column_groups - 1;  // no columns are stored
    // An expert that does not exist has weights of zero, for which any scale will do.
    const uint32_t expert = static_cast<uint32_t>(tile.expert);
    const uint64_t row =
        expert < settings_.num_experts ? uint64_t{expert} * num_column_groups + column_group : 0;
    return settings_.weight_scales + row * num_steps_;
  }

  // Skips a tile without rows for this consumer.
  SWITCHYARD_DEVICE void pass_over() {
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      // acquire MM-24: the stage; pairs with the release in the producer's load()
      wait_for_phase(shared_.full[stage], stages_.parity());
      stages_.advance();
      for (int group = 0; group < Config::kNumColumnGroups; ++group) {
        take_turn();
        pass_turn();
      }
      release(stage);
    }
  }

  // release MM-25: this warp has read the stage; pairs with the producer's wait before the next load into it,
  // or those of both producers of a pair. If ordinary loads have read scales, every thread arrives for its
  // own.
  SWITCHYARD_DEVICE void release(uint32_t stage) {
    if constexpr (Config::kIsScaled) return shared_.empty[stage].arrive();
    target::sync_warp();
    if constexpr (Config::kIsPair) {
      if (target::lane_idx() < Config::kClusterBlocks)
        target::arrive_in_cluster(shared_.empty[stage], static_cast<uint32_t>(target::lane_idx()));
    } else {
      if (target::lane_idx() == 0) shared_.empty[stage].arrive();
    }
  }

  SWITCHYARD_DEVICE void store(const MatmulTile& tile) {
    const int num_rows = tile.num_rows;
    const uint32_t column = tile.first_column + static_cast<uint32_t>(first_column_);
    const int num_columns = column < settings_.columns ? static_cast<int>(settings_.columns - column) : 0;
    bf16* output = settings_.output + uint64_t{tile.first_row} * settings_.columns + column;
    product_.store(num_columns, [&](int row) -> bf16* {
      const int row_in_tile = first_row_ + row;
      return row_in_tile < num_rows ? output + static_cast<uint64_t>(row_in_tile) * settings_.columns
                                    : nullptr;
    });
  }

  const MatmulSettings& settings_;
  MatmulShared<Config>& shared_;
  const int consumer_idx_;
  const int first_row_, first_column_;  // of this consumer in a tile
  const uint32_t num_steps_;
  std::conditional_t<Config::kIsScaled, ScaledWarpgroupProduct<Config>, WarpgroupProduct<Config>> product_;
  StageCursor<1> tiles_;
  StageCursor<Config::kNumStages> stages_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
