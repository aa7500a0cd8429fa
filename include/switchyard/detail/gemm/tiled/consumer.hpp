// A consumer of a block of the tiled matmul: a warpgroup with 64 rows, or some columns, of every tile.
#pragma once

#include <bit>
#include <type_traits>

#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/detail/gemm/tiled/arrivals.hpp"
#include "switchyard/detail/gemm/tiled/completion.hpp"
#include "switchyard/detail/gemm/tiled/kernel_params.hpp"
#include "switchyard/detail/gemm/tiled/shared.hpp"
#include "switchyard/detail/gemm/tiled/tile_grid.hpp"
#include "switchyard/token_format.hpp"
#if defined(__CUDACC__)
#include "switchyard/detail/gemm/tiled/coded_product.cuh"
#include "switchyard/detail/gemm/tiled/warpgroup_product.cuh"
#else
#include "switchyard/detail/gemm/tiled/host_product.hpp"
#endif

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, MatmulArrivals Arrivals, MatmulCompletion Completion>
class MatmulConsumer {
 public:
  // consumer_idx: this warpgroup among the consumers.
  SWITCHYARD_DEVICE MatmulConsumer(const MatmulSettings& settings, const Completion& completion,
                                   MatmulShared<Config>& shared, int consumer_idx)
      : settings_(settings),
        completion_(completion),
        shared_(shared),
        consumer_idx_(consumer_idx),
        first_row_(Config::kSplitsRows ? consumer_idx * kWarpgroupRows : 0),
        first_column_(Config::kSplitsRows ? 0 : consumer_idx * Config::kConsumerColumns),
        num_steps_(ceil_div(settings.inner, uint32_t{Config::kStageInner})) {}

  SWITCHYARD_DEVICE void run() {
    for (;;) {
      const MatmulTile tile = take_tile(shared_, tiles_);
      // All lanes have the same tile. The compiler sees that they stay together only if they vote, and,
      // behind stores of some lanes, meet. Otherwise it keeps stages and operands for each lane, and computes
      // them between products: an eighth of the time in fp8.
      if (target::ballot(tile.is_tile) == 0) break;
      if (first_row_ < tile.num_rows) {
        if constexpr (Config::kIsScaled)
          multiply_scaled(tile);
        else if constexpr (Config::kIsCoded)
          multiply_coded(tile);
        else
          multiply(tile.num_rows - first_row_);
        store(tile);
        target::sync_warp();
      } else {
        pass_over();
      }
      if constexpr (Completion::kTells) complete_part(tile);
    }
  }

 private:
  using Product = std::conditional_t<
      Config::kIsScaled, ScaledWarpgroupProduct<Config>,
      std::conditional_t<Config::kIsCoded, CodedProduct<Config>, WarpgroupProduct<Config>>>;
  using Scales = StepScales<Config, Arrivals>;

  static constexpr uint32_t kAmaxBarrier = 1;
  static constexpr uint32_t kFirstStoredBarrier = kAmaxBarrier + 1;  // a named barrier for each consumer

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
  // unit keeps too few bits of a long sum. While a consumer scales, the other's products are in flight. So
  // that they are long enough, all that can be is done before the wait for products: the next stage is waited
  // for and found, and the factors are.
  SWITCHYARD_DEVICE void multiply_scaled(const MatmulTile& tile) {
    static_assert(Config::kNumStages > 1);  // of two one is waited for before the other is released
    constexpr int kLastGroup = Config::kNumColumnGroups - 1;
    const int num_rows = tile.num_rows - first_row_;
    Scales scales(scales_of(tile));
    product_.clear();
    typename Product::Operands operands = await_operands();
    SWITCHYARD_ROLLED
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      stages_.advance();
      SWITCHYARD_UNROLL
      for (int group = 0; group <= kLastGroup; ++group) {
        product_.start(operands, group, num_rows);
        if (group == 0) scales.advance_to(step);
        StepFactors<Config> factors;
        scales.find_factors(group, factors);
        if (group == kLastGroup && step + 1 < num_steps_) operands = await_operands();
        product_.wait();
        if (group == kLastGroup) release(stage);
        product_.add_scaled(group, factors);
      }
    }
  }
  SWITCHYARD_DEVICE auto await_operands() {
    const uint32_t stage = stages_.stage();
    // acquire MM-24: the stage; pairs with the release in the producer's load()
    wait_for_phase(shared_.full[stage], stages_.parity());
    return Product::operands(shared_.rows[stage] + first_row_ * kPanelRowBytes,
                             shared_.weights[stage] + first_column_ * kPanelRowBytes);
  }
  SWITCHYARD_DEVICE StepScaleTensors<Config::kNumScales> scales_of(const MatmulTile& tile) const {
    StepScaleTensors<Config::kNumScales> scales{};
    scales.rows = settings_.row_scales + uint64_t{tile.first_row + static_cast<uint32_t>(first_row_)} *
                                             settings_.row_scale_row_stride;
    scales.row_stride = settings_.row_scale_row_stride;
    scales.word_stride = settings_.row_scale_word_stride;
    scales.row_kind = settings_.row_scale_kind;
    scales.num_rows = tile.num_rows - first_row_;
    SWITCHYARD_UNROLL
    for (int i = 0; i < Config::kNumScales; ++i) scales.weights[i] = weight_scales_of(tile, i);
    scales.num_steps = num_steps_;
    return scales;
  }

  // The same for coded weights. When the products of a step have been started, those of the last one have
  // ended.
  SWITCHYARD_DEVICE void multiply_coded(const MatmulTile& tile) {
    const auto release_read = [&](uint32_t stage) {
      target::fence_proxy_async_shared();  // the codes were read before the next load may write there
      release(stage);
    };
    uint32_t last_stage = 0;
    product_.begin(num_code_scales(), [&](int column) { return code_scales_of(tile, column); });
    SWITCHYARD_ROLLED
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      // acquire MM-24: the stage; pairs with the release in the producer's load()
      wait_for_phase(shared_.full[stage], stages_.parity());
      stages_.advance();
      product_.start(shared_.rows[stage], shared_.weights[stage] + first_column_ * kPanelRowBytes, step,
                     tile.num_rows);
      if (step != 0) release_read(last_stage);
      last_stage = stage;
    }
    product_.wait();
    release_read(last_stage);
    const uint32_t expert = static_cast<uint32_t>(tile.expert);
    const bool has_scale = settings_.weight_tensor_scales != nullptr && expert < settings_.num_experts;
    product_.multiply_all(has_scale ? target::ld(settings_.weight_tensor_scales + expert) : 1.0f);
  }
  // The scales of a column of coded weights: their number, and, of one of this consumer's columns, where they
  // are. Null: there is no such column, or no such expert, and the codes are zeros.
  SWITCHYARD_DEVICE uint32_t num_code_scales() const {
    return settings_.inner / uint32_t{scale_group_size(Config::kWeights)};
  }
  SWITCHYARD_DEVICE const uint8_t* code_scales_of(const MatmulTile& tile, int in_consumer) const {
    const uint32_t is_up = Config::kIsGated && in_consumer >= Config::kOutputColumns;
    const uint32_t column = output_column(tile) + static_cast<uint32_t>(in_consumer) -
                            is_up * static_cast<uint32_t>(Config::kOutputColumns);
    const uint32_t expert = static_cast<uint32_t>(tile.expert);
    if (column >= num_output_columns() || expert >= settings_.num_experts) return nullptr;
    const uint64_t row =
        uint64_t{expert} * settings_.columns + (Config::kIsGated ? weight_column(column, is_up) : column);
    return static_cast<const uint8_t*>(settings_.weight_scales) + row * num_code_scales();
  }

  // Returns the scales of those of this consumer's columns that share them, one for each step.
  SWITCHYARD_DEVICE const float* weight_scales_of(const MatmulTile& tile, int idx) const {
    const uint32_t num_column_groups = ceil_div(settings_.columns, uint32_t{kMatmulScaleGroup});
    uint32_t column_group = scale_group_of(tile, static_cast<uint32_t>(idx));
    if (column_group >= num_column_groups) column_group = num_column_groups - 1;  // no columns are stored
    // An expert that does not exist has weights of zero, for which any scale will do.
    const uint32_t expert = static_cast<uint32_t>(tile.expert);
    const uint64_t row =
        expert < settings_.num_experts ? uint64_t{expert} * num_column_groups + column_group : 0;
    return static_cast<const float*>(settings_.weight_scales) + row * num_steps_;
  }
  SWITCHYARD_DEVICE uint32_t scale_group_of(const MatmulTile& tile, uint32_t idx) const {
    if constexpr (Config::kIsGated) {
      constexpr uint32_t kColumnsPerScale = Config::kColumnGroup / Config::kScalesPerGroup;
      constexpr uint32_t kScalesOfGates = Config::kOutputColumns / kColumnsPerScale;
      const uint32_t is_up = idx / kScalesOfGates;
      const uint32_t column = output_column(tile) + idx % kScalesOfGates * kColumnsPerScale;
      return weight_column(column, is_up) / kMatmulScaleGroup;
    } else {
      return (tile.first_column + static_cast<uint32_t>(first_column_)) / kMatmulScaleGroup + idx;
    }
  }

  // Skips a tile without rows for this consumer.
  SWITCHYARD_DEVICE void pass_over() {
    for (uint32_t step = 0; step < num_steps_; ++step) {
      const uint32_t stage = stages_.stage();
      // acquire MM-24: the stage; pairs with the release in the producer's load()
      wait_for_phase(shared_.full[stage], stages_.parity());
      stages_.advance();
      release(stage);
    }
  }

  // release MM-25: this warp has read the stage; pairs with the waits of the producer, or of both producers
  // of a pair, and of the decoders before they fill it again. If ordinary loads have read codes, every thread
  // arrives for its own.
  SWITCHYARD_DEVICE void release(uint32_t stage) {
    if constexpr (Config::kIsCoded) return shared_.empty[stage].arrive();
    target::sync_warp();
    if constexpr (Config::kIsPair) {
      if (target::lane_idx() < Config::kClusterBlocks)
        target::arrive_in_cluster(shared_.empty[stage], static_cast<uint32_t>(target::lane_idx()));
    } else {
      if (target::lane_idx() == 0) shared_.empty[stage].arrive();
    }
  }

  // Every consumer counts every tile, also one in which it has no rows. (Tells: group g has expert g.)
  SWITCHYARD_DEVICE void complete_part(const MatmulTile& tile) {
    target::named_barrier_sync(kFirstStoredBarrier + consumer_idx_, kWarpgroupThreads);
    if (target::warp_idx() % (kWarpgroupThreads / kWarpSize) != 0) return;
    const uint32_t group_idx = static_cast<uint32_t>(tile.expert);
    const uint32_t num_units =
        TileUnit<Config>::count(rows_of_group(settings_.groups, group_idx).count, settings_.columns);
    completion_.complete_part(group_idx, num_units * Config::kClusterBlocks * Config::kNumConsumers);
  }

  // The epilogue.
  SWITCHYARD_DEVICE void store(const MatmulTile& tile) {
    if constexpr (Config::kEpilogue == MatmulEpilogue::kPlain) {
      store_bf16(tile);
    } else {
      if (settings_.bias != nullptr) add_bias(tile);
      if constexpr (Config::kIsGated) {
        product_.activate_all(settings_.activation);
      } else {
        if (settings_.row_weights != nullptr) weigh_rows(tile);
      }
      if constexpr (Config::kStoresFP8)
        store_fp8(tile);
      else if constexpr (Config::kStoresFP8Rows)
        store_fp8_rows(tile);
      else
        store_bf16(tile);
    }
  }

  // Columns of the output: all of them, and the first of this consumer's.
  SWITCHYARD_DEVICE uint32_t num_output_columns() const {
    return Config::kIsGated ? settings_.columns / 2 : settings_.columns;
  }
  SWITCHYARD_DEVICE uint32_t output_column(const MatmulTile& tile) const {
    const uint32_t column = tile.first_column + static_cast<uint32_t>(first_column_);
    return Config::kIsGated ? column / 2 : column;
  }
  // The column of the weights that has the gate or the up of a column of the output.
  SWITCHYARD_DEVICE uint32_t weight_column(uint32_t column, uint32_t is_up) const {
    return settings_.gate_layout == GateLayout::kStacked ? is_up * (settings_.columns / 2) + column
                                                         : column * 2 + is_up;
  }

  SWITCHYARD_DEVICE void store_bf16(const MatmulTile& tile) {
    const int num_rows = tile.num_rows;
    const uint32_t column = output_column(tile);
    const int num_columns =
        column < num_output_columns() ? static_cast<int>(num_output_columns() - column) : 0;
    bf16* output = settings_.output + uint64_t{tile.first_row} * num_output_columns() + column;
    product_.store(num_columns, [&](int row) -> bf16* {
      const int row_in_tile = first_row_ + row;
      return row_in_tile < num_rows ? output + static_cast<uint64_t>(row_in_tile) * num_output_columns()
                                    : nullptr;
    });
  }

  SWITCHYARD_DEVICE void add_bias(const MatmulTile& tile) {
    if (static_cast<uint32_t>(tile.expert) >= settings_.num_experts) return;  // its outputs are 0
    const float* bias = settings_.bias + static_cast<uint64_t>(tile.expert) * settings_.columns;
    const uint32_t columns = num_output_columns(), column = output_column(tile);
    product_.add_bias([&](int in_consumer) {
      const uint32_t is_up = Config::kIsGated && in_consumer >= Config::kOutputColumns;
      const uint32_t in_output =
          column + static_cast<uint32_t>(in_consumer) - is_up * static_cast<uint32_t>(Config::kOutputColumns);
      if (in_output >= columns) return 0.0f;
      return target::ld(bias + (Config::kIsGated ? weight_column(in_output, is_up) : in_output));
    });
  }
  SWITCHYARD_DEVICE void weigh_rows(const MatmulTile& tile) {
    float weights[Product::kThreadRows];
    SWITCHYARD_UNROLL
    for (int i = 0; i < Product::kThreadRows; ++i) {
      const int row_in_tile = first_row_ + Product::row_of(i);
      weights[i] = Product::has_rows() && row_in_tile < tile.num_rows
                       ? target::ld(settings_.row_weights + tile.first_row + row_in_tile)
                       : 0.0f;
    }
    product_.multiply_rows(weights);
  }

  SWITCHYARD_DEVICE void store_fp8(const MatmulTile& tile) {
    const uint32_t columns = num_output_columns(), column = output_column(tile);
    const int num_columns = column < columns ? static_cast<int>(columns - column) : 0;
    uint8_t* output = reinterpret_cast<uint8_t*>(settings_.output) + column;
    float* scales = settings_.output_scales +
                    uint64_t{column / kMatmulScaleGroup} * settings_.output_scale_stride + tile.first_row;
    uint32_t amax[Product::kThreadRows];
    SWITCHYARD_UNROLL
    for (int i = 0; i < Product::kThreadRows; ++i) amax[i] = product_.amax_of(i, 0);
    if constexpr (Config::kSplitsScaleGroup) include_other_half(amax);
    SWITCHYARD_UNROLL
    for (int i = 0; i < Product::kThreadRows; ++i) {
      const int row_in_tile = first_row_ + Product::row_of(i);
      const bool is_row = Product::has_rows() && row_in_tile < tile.num_rows;
      const auto scale = BlockwiseFP8Quantizer<e4m3>{}.scale_of(std::bit_cast<float>(amax[i]));
      const uint64_t row = tile.first_row + static_cast<uint64_t>(row_in_tile);
      product_.store_codes(i, 0, scale.factor, num_columns, is_row ? output + row * columns : nullptr);
      // Of two consumers the first has columns wherever the second has some.
      if (is_row && Product::leads_row() && column % kMatmulScaleGroup == 0 && num_columns > 0)
        target::st(scales + row_in_tile, scale.stored);
    }
  }
  // Each of two consumers has half of the columns that share a scale. A tile writes where the tile before the
  // last one did: every thread has read that before it came to the barrier of the last tile.
  SWITCHYARD_DEVICE void include_other_half(uint32_t (&amax)[Product::kThreadRows]) {
    auto& of_consumer = shared_.row_amax[tiles_.parity()];
    SWITCHYARD_UNROLL
    for (int i = 0; i < Product::kThreadRows; ++i)
      if (Product::leads_row()) target::st(&of_consumer[consumer_idx_][Product::row_of(i)], amax[i]);
    target::named_barrier_sync(kAmaxBarrier, 2 * kWarpgroupThreads);
    SWITCHYARD_UNROLL
    for (int i = 0; i < Product::kThreadRows; ++i) {
      if (!Product::has_rows()) continue;
      const uint32_t other = target::ld(&of_consumer[1 - consumer_idx_][Product::row_of(i)]);
      amax[i] = other > amax[i] ? other : amax[i];
    }
  }

  // A row is an encoded token of a combine in fp8: all codes, then a scale for each 128 of them.
  SWITCHYARD_DEVICE void store_fp8_rows(const MatmulTile& tile) {
    using Quantizer = BlockwiseFP8Quantizer<e4m3>;
    const int columns = static_cast<int>(num_output_columns());
    const GroupedMessageLayout<Quantizer> layout{columns};
    const uint64_t row_bytes = combine_row_bytes(CombineFormat::kFP8, columns);
    std::byte* output = reinterpret_cast<std::byte*>(settings_.output) + tile.first_row * row_bytes;
    SWITCHYARD_UNROLL
    for (int i = 0; i < Product::kThreadRows; ++i) {
      const int row_in_tile = first_row_ + Product::row_of(i);
      const bool is_row = Product::has_rows() && row_in_tile < tile.num_rows;
      std::byte* row = output + static_cast<uint64_t>(row_in_tile) * row_bytes;
      SWITCHYARD_UNROLL
      for (int group = 0; group < Config::kOutputColumns / Config::kOutputGroup; ++group) {
        const int column = static_cast<int>(output_column(tile)) + group * Config::kOutputGroup;
        const auto scale = Quantizer{}.scale_of(std::bit_cast<float>(product_.amax_of(i, group)));
        const bool is_there = is_row && column < columns;
        product_.store_codes(i, group, scale.factor, Config::kOutputGroup,
                             is_there ? reinterpret_cast<uint8_t*>(row + column) : nullptr);
        if (is_there && Product::leads_row())
          target::st(layout.scales(row) + column / kMatmulScaleGroup, scale.stored);
      }
    }
  }

  const MatmulSettings& settings_;
  const Completion& completion_;
  MatmulShared<Config>& shared_;
  const int consumer_idx_;
  const int first_row_, first_column_;  // of this consumer in a tile
  const uint32_t num_steps_;
  Product product_;
  StageCursor<1> tiles_;
  StageCursor<Config::kNumStages> stages_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
