// A consumer of a block of the tiled matmul: a warpgroup with 64 rows, or some columns, of every tile.
#pragma once

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
  SWITCHYARD_DEVICE MatmulConsumer(const MatmulNumbers& numbers, MatmulShared<Config>& shared,
                                   int consumer_idx)
      : numbers_(numbers),
        shared_(shared),
        first_row_(Config::kSplitsRows ? consumer_idx * kWarpgroupRows : 0),
        first_column_(Config::kSplitsRows ? 0 : consumer_idx * Config::kConsumerColumns),
        num_steps_(ceil_div(numbers.inner, uint32_t{Config::kStageInner})) {}

  SWITCHYARD_DEVICE void run() {
    for (;;) {
      wait_for_phase(shared_.tile_full, tiles_.parity());
      tiles_.advance();
      const MatmulTile tile = target::ld(&shared_.tile);
      if (!tile.is_tile) return;
      // release: this warp has read the tile; pairs with the planner's wait before it writes the next one
      target::sync_warp();
      if (target::lane_idx() == 0) shared_.tile_empty.arrive();
      if (first_row_ < tile.num_rows) {
        multiply(tile.num_rows - first_row_);
        store(tile);
      } else {
        pass_over();
      }
    }
  }

 private:
  // A step's products run while those of the step before it end and give back their stage.
  SWITCHYARD_DEVICE void multiply(int num_rows) {
    uint32_t last_stage = 0;
    SWITCHYARD_ROLLED
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
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

  // A tile without rows for this consumer.
  SWITCHYARD_DEVICE void pass_over() {
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      wait_for_phase(shared_.full[stage], stages_.parity());
      stages_.advance();
      release(stage);
    }
  }

  // release: this warp has read the stage; pairs with the producer's wait before the next load into it, or
  // those of both producers of a pair
  SWITCHYARD_DEVICE void release(uint32_t stage) {
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
    const int num_columns = column < numbers_.columns ? static_cast<int>(numbers_.columns - column) : 0;
    bf16* output = numbers_.output + uint64_t{tile.first_row} * numbers_.columns + column;
    product_.store(num_columns, [&](int row) -> bf16* {
      const int row_in_tile = first_row_ + row;
      return row_in_tile < num_rows ? output + static_cast<uint64_t>(row_in_tile) * numbers_.columns
                                    : nullptr;
    });
  }

  const MatmulNumbers& numbers_;
  MatmulShared<Config>& shared_;
  const int first_row_, first_column_;  // of this consumer in a tile
  const uint32_t num_steps_;
  WarpgroupProduct<Config> product_;
  StageCursor<1> tiles_;
  StageCursor<Config::kNumStages> stages_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
