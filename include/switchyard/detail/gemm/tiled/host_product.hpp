// 64 rows times a consumer's columns of weights, on the CPU: the same steps as warpgroup_product.cuh in plain
// loops. What is in flight there is complete here when the call returns.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/gemm/tiled/activate.hpp"
#include "switchyard/detail/gemm/tiled/step_scales.hpp"
#include "switchyard/detail/gemm/tiled/weight_codes.hpp"
#include "switchyard/detail/target/host_arithmetic.hpp"
#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/warpgroup.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The sums of a warpgroup: half of a warp's lanes have those of a row each. A consumer of coded weights has
// all rows of a tile, and there every thread may have a row.
template <typename Config>
class WarpgroupSums {
 public:
  template <typename RowAddress>
  void store(int num_columns, RowAddress row_address) const {
    bf16* output = has_row() ? row_address(row()) : nullptr;
    for (int i = 0; output != nullptr && i < Config::kOutputColumns && i < num_columns; ++i)
      target::st(output + i, to_bf16(sums_[i]));
  }

  // The epilogue, as in warpgroup_product.cuh.
  static constexpr int kThreadRows = 1;
  static bool has_rows() { return has_row(); }
  static bool leads_row() { return has_row(); }
  static int row_of(int) { return row(); }

  template <typename BiasOf>
  void add_bias(BiasOf bias_of) {
    for (int i = 0; has_row() && i < kColumns; ++i) sums_[i] += bias_of(i);
  }
  void multiply_rows(const float (&weights)[kThreadRows]) {
    for (float& sum : sums_) sum *= weights[0];
  }
  void activate_all(const ActivationNumbers& numbers) {
    for (int i = 0; has_row() && i < kColumns / 2; ++i)
      sums_[i] = activate(numbers, sums_[i], sums_[i + kColumns / 2]);
  }
  uint32_t amax_of(int, int group) const {
    const float* sums = sums_ + group * Config::kOutputGroup;
    uint32_t amax = 0;
    for (int i = 0; has_row() && i < Config::kOutputGroup; ++i)
      amax = std::max(amax, std::bit_cast<uint32_t>(sums[i]) & 0x7fffffffu);
    return amax;
  }
  void store_codes(int, int group, float factor, int num_columns, uint8_t* row) const {
    const float* sums = sums_ + group * Config::kOutputGroup;
    for (int i = 0; row != nullptr && i < Config::kOutputGroup && i < num_columns; ++i)
      target::st(row + i, to_minifloat<e4m3>(sums[i] * factor).bits);
  }

 protected:
  static constexpr int kColumns = Config::kConsumerColumns;

  static bool has_row() {
    if constexpr (Config::kIsCoded) return row() < Config::kTileRows;
    return target::lane_idx() < 16;
  }
  static int row() {
    const int thread = target::thread_idx() % kWarpgroupThreads;
    return Config::kIsCoded ? thread : thread / kWarpSize * 16 + target::lane_idx();
  }

  float sums_[kColumns];
};

template <typename Config>
class WarpgroupProduct : public WarpgroupSums<Config> {
  using Sums = WarpgroupSums<Config>;
  using Sums::kColumns, Sums::sums_, Sums::has_row, Sums::row;

 public:
  // Rows past num_rows were not loaded.
  void start(const unsigned char* rows, const unsigned char* weights, bool accumulate, int num_rows) {
    if (!has_row() || row() >= num_rows) return;
    for (int panel = 0; panel < Config::kNumPanels; ++panel) {
      float values[kPanelColumns];
      load(rows + panel * Config::kRowPanelBytes, row(), values);
      for (int column = 0; column < kColumns; ++column) {
        float column_values[kPanelColumns];
        load(weights + panel * Config::kWeightPanelBytes, column, column_values);
        const float sum = accumulate || panel > 0 ? sums_[column] : 0.0f;
        sums_[column] = add_products<kPanelColumns>(sum, values, column_values);
      }
    }
  }
  template <int kPending>
  void wait() {}

 private:
  static void load(const unsigned char* tile, int row, float (&values)[kPanelColumns]) {
    for (int unit = 0; unit < kPanelColumns / 8; ++unit) {
      const Vec16 packed = target::matrix_ld_16(tile + row * kPanelRowBytes + unit * 16);
      unpack_bf16(packed, values + unit * 8);
    }
  }
};

// The values of all codes of an element.
template <typename Element>
inline constexpr auto kValuesOfCodes = [] {
  std::array<float, size_t{1} << Element::kNumBits> values{};
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = to_float(Element{static_cast<uint8_t>(code)});
  return values;
}();

// The product for coded weights: every thread with a row decodes all columns.
template <typename Config>
class CodedProduct : public WarpgroupSums<Config> {
  using Sums = WarpgroupSums<Config>;
  using Sums::kColumns, Sums::sums_, Sums::has_row, Sums::row;
  using Codes = WeightCodes<Config::kWeights>;
  using Element = typename Codes::Element;

 public:
  // scales_of(column) is where the scales of one of the consumer's columns are, num_scales of them, or null.
  template <typename ScalesOf>
  void begin(uint32_t num_scales, ScalesOf scales_of) {
    num_scales_ = num_scales;
    for (int column = 0; column < kColumns; ++column) {
      scales_[column] = scales_of(column);
      sums_[column] = 0;
    }
  }
  // Rows past num_rows were not loaded.
  void start(const unsigned char* rows, const unsigned char* codes, uint32_t step, int num_rows) {
    if (!has_row() || row() >= num_rows) return;
    float values[Config::kStageInner], weights[Config::kStageInner];
    for (int i = 0; i < Config::kStageInner; i += 8) {
      const unsigned char* panel = rows + i / kPanelColumns * Config::kRowPanelBytes;
      unpack_bf16(target::matrix_ld_16(panel + row() * kPanelRowBytes + i % kPanelColumns * 2), values + i);
    }
    for (int column = 0; column < kColumns; ++column) {
      decode(codes + column * kPanelRowBytes, column, step, weights);
      sums_[column] = add_products<Config::kStageInner>(sums_[column], values, weights);
    }
  }
  void wait() {}
  // `factor` is that of the expert.
  void multiply_all(float factor) { host_target::multiply_all<kColumns>(sums_, factor); }

 private:
  void decode(const unsigned char* codes, int column, uint32_t step,
              float (&values)[Config::kStageInner]) const {
    constexpr int kUnitCodes = 16 * 8 / Element::kNumBits;
    for (int i = 0; i < Config::kStageInner; i += kUnitCodes) {
      const Vec16 packed = target::ld_16(codes + i * Element::kNumBits / 8);
      if constexpr (Element::kNumBits == 8)
        unpack_codes(packed, kValuesOfCodes<Element>.data(), values + i);
      else
        unpack_half_bytes(packed, kValuesOfCodes<Element>.data(), values + i);
    }
    constexpr int kStageScales = Config::kStageInner / Codes::kGroupSize;
    for (int group = 0; group < kStageScales; ++group) {
      const uint32_t in_row = step * kStageScales + static_cast<uint32_t>(group);
      const bool is_there = scales_[column] != nullptr && in_row < num_scales_;
      const float scale =
          is_there ? to_float(typename Codes::Scale{target::ld(scales_[column] + in_row)}) : 0.0f;
      host_target::multiply_all<Codes::kGroupSize>(values + group * Codes::kGroupSize, scale);
    }
  }

  const uint8_t* scales_[kColumns];
  uint32_t num_scales_ = 0;
};

template <typename Config>
using StepFactors = float[Config::kScalesPerGroup][1];

// The scales of each step, as in warpgroup_product.cuh.
template <typename Config, MatmulArrivals Arrivals>
class StepScales {
 public:
  explicit StepScales(const StepScaleTensors<Config::kNumScales>& tensors) : tensors_(tensors) {}
  void advance_to(uint32_t step) {
    constexpr uint32_t kPerWord = PackedScaleLayout::kScalesPerWord;
    step_ = step;
    const int row = WarpgroupSums<Config>::row_of(0);
    if (!WarpgroupSums<Config>::has_rows() || row >= tensors_.num_rows) return;
    const uint32_t word = tensors_.row_kind == MatmulRowScales::kPackedE8M0 ? step / kPerWord : step;
    const RowScaleInWord in_word{tensors_.row_kind, step % kPerWord};
    of_row_ =
        in_word.scale(load_row_scale<Arrivals>(tensors_.rows + uint64_t{word} * tensors_.word_stride +
                                               uint64_t{static_cast<uint32_t>(row)} * tensors_.row_stride));
  }
  void find_factors(int group, StepFactors<Config>& factors) const {
    for (int part = 0; part < Config::kScalesPerGroup; ++part)
      factors[part][0] =
          of_row_ * target::ld(tensors_.weights[group * Config::kScalesPerGroup + part] + step_);
  }

 private:
  const StepScaleTensors<Config::kNumScales> tensors_;
  uint32_t step_ = 0;
  float of_row_ = 0;
};

// The product for fp8: a step's products with the columns that share a scale are separate sums, which are
// scaled before they are added up.
template <typename Config>
class ScaledWarpgroupProduct : public WarpgroupSums<Config> {
  using Sums = WarpgroupSums<Config>;
  using Sums::sums_, Sums::has_row, Sums::row;

 public:
  struct Operands {
    const unsigned char *rows, *weights;
  };
  static Operands operands(const unsigned char* rows, const unsigned char* weights) {
    return {rows, weights};
  }

  void clear() {
    for (float& sum : sums_) sum = 0;
  }
  // Rows past num_rows were not loaded.
  void start(const Operands& operands, int group, int num_rows) {
    has_sums_ = has_row() && row() < num_rows;
    if (!has_sums_) return;
    float values[kPanelRowBytes];
    load(operands.rows, row(), values);
    for (int column = 0; column < Config::kColumnGroup; ++column) {
      float column_values[kPanelRowBytes];
      load(operands.weights, group * Config::kColumnGroup + column, column_values);
      step_sums_[column] = add_products<kPanelRowBytes>(0, values, column_values);
    }
  }
  void wait() {}
  // `group` is the one whose products were started last; equal parts of it have factors of their own.
  void add_scaled(int group, const StepFactors<Config>& factors) {
    constexpr int kColumnsPerScale = Config::kColumnGroup / Config::kScalesPerGroup;
    for (int i = 0; has_sums_ && i < Config::kColumnGroup; ++i)
      sums_[group * Config::kColumnGroup + i] += step_sums_[i] * factors[i / kColumnsPerScale][0];
  }

 private:
  static void load(const unsigned char* tile, int row, float (&values)[kPanelRowBytes]) {
    for (int unit = 0; unit < kPanelRowBytes / 16; ++unit) {
      const Vec16 packed = target::matrix_ld_16(tile + row * kPanelRowBytes + unit * 16);
      unpack_codes(packed, kValuesOfCodes<e4m3>.data(), values + unit * 16);
    }
  }
  float step_sums_[Config::kColumnGroup];
  bool has_sums_ = false;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
