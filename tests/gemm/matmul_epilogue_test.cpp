// The epilogues of the tiled grouped matmul on every target that is here, against plain loops.
#include <gtest/gtest.h>

#include <cstring>

#include "layer_kernels_fixture.hpp"
#include "matmul_operand.hpp"
#include "reference/matmul.hpp"
#include "sweep.hpp"
#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/grouped_matmul.hpp"

namespace switchyard {
namespace {

using testing_support::CodedWeights;
using testing_support::inner_multiple_of;
using testing_support::must;
using testing_support::Operand;
using testing_support::random_scales;
using testing_support::repeats;
using testing_support::sweep;

constexpr Activation kActivations[] = {Activation::kSiLU, Activation::kGELU, Activation::kClampedSwiGLU};
constexpr GateLayout kGateLayouts[] = {GateLayout::kStacked, GateLayout::kInterleaved};
constexpr uint8_t kPoison = 0xee;

struct EpilogueCase {
  MatmulTuning tuning;
  Activation activation = Activation::kNone;
  GateLayout gate_layout = GateLayout::kStacked;
  MatmulOutput output = MatmulOutput::kBF16;
  std::vector<int> group_rows = {0, 1, 63, 0, 66, 130};
  int inner = 208;
  int columns = 256;  // of the output
  bool has_bias = true;
  bool has_row_weights = false;
  int num_blocks = 3;

  bool is_gated() const { return activation != Activation::kNone; }
  int weight_columns() const { return is_gated() ? 2 * columns : columns; }
  MatmulEpilogue epilogue() const {
    if (!is_gated())
      return output == MatmulOutput::kFP8Rows ? MatmulEpilogue::kAffineFP8 : MatmulEpilogue::kAffine;
    return output == MatmulOutput::kFP8 ? MatmulEpilogue::kGatedFP8 : MatmulEpilogue::kGated;
  }
  std::string name() const {
    return to_string(tuning) + ", " + to_string(activation) +
           (gate_layout == GateLayout::kStacked ? "" : ", interleaved") + ", to " +
           switchyard::to_string(output) + ", K " + std::to_string(inner) + ", N " + std::to_string(columns);
  }
};

// One case on a rank. Rows of no group, three in front of the groups and five behind them, hold NaN.
class EpilogueHarness {
 public:
  EpilogueHarness(Rank& rank, const EpilogueCase& epilogue_case) : case_(epilogue_case), rank_(rank) {
    group_of_row_.resize(3, -1);
    for (size_t g = 0; g < case_.group_rows.size(); ++g) {
      offsets_.push_back(static_cast<uint32_t>(group_of_row_.size()));
      group_of_row_.resize(group_of_row_.size() + static_cast<size_t>(case_.group_rows[g]),
                           static_cast<int>(g));
    }
    offsets_.push_back(static_cast<uint32_t>(group_of_row_.size()));
    group_of_row_.resize(group_of_row_.size() + 5, -1);
    if (is_coded(case_.tuning.weights)) case_.inner = align_up(case_.inner, inner_multiple_of(case_.tuning));
    inner_ = static_cast<size_t>(case_.inner);
    weight_columns_ = static_cast<size_t>(case_.weight_columns());
    columns_ = static_cast<size_t>(case_.columns);
    const size_t num_experts = case_.group_rows.size();
    const MatmulElement element = case_.tuning.element;
    rows_ = Operand(element, num_rows() * inner_, 1);
    if (is_coded(case_.tuning.weights))
      make_coded_weights(num_experts);
    else
      weights_ = Operand(element, num_experts * weight_columns_ * inner_, 2);
    bias_ = random_scales(num_experts * weight_columns_, 5);
    row_weights_ = random_scales(num_rows(), 6);
    for (size_t row = 0; row < num_rows(); ++row)
      if (group_of_row_[row] < 0) {
        rows_.set_nan(row * inner_, (row + 1) * inner_);
        row_weights_[row] = NAN;
      }
    if (element == MatmulElement::kFP8) make_scales(num_experts);
    make_buffers();
  }

  GroupedMatmulShape shape() const {
    return {.num_groups = static_cast<int>(case_.group_rows.size()),
            .element = case_.tuning.element,
            .weights = case_.tuning.weights,
            .inner = case_.inner,
            .columns = case_.weight_columns(),
            .activation = case_.activation,
            .gate_layout = case_.gate_layout,
            .output = case_.output,
            .max_rows = static_cast<int64_t>(num_rows()),
            .num_blocks = case_.num_blocks,
            .tuning = case_.tuning};
  }
  // Runs once and says what is wrong.
  std::string compare() {
    if (Status status = run(); !status.ok()) return status.to_string();
    const std::vector<uint8_t> output = this->output();
    const std::vector<float> scales = must(output_scales_.download());
    for (size_t row = 0; row < num_rows(); ++row) {
      const std::string bad = group_of_row_[row] < 0                ? compare_untouched(output, scales, row)
                              : case_.output == MatmulOutput::kBF16 ? compare_bf16(output, row)
                                                                    : compare_fp8(output, scales, row);
      if (!bad.empty()) return bad;
    }
    return "";
  }
  Status run() {
    SWITCHYARD_RETURN_IF_ERROR(output_.fill_bytes(kPoison));
    SWITCHYARD_RETURN_IF_ERROR(output_scales_.fill_bytes(kPoison));
    return matmul_->run(tensors_);
  }
  std::vector<uint8_t> output() {
    EXPECT_TRUE(rank_.synchronize().ok());
    return must(output_.download());
  }

 private:
  size_t num_rows() const { return group_of_row_.size(); }
  size_t stride() const { return align_up<size_t>(num_rows(), 4); }
  size_t row_bytes() const {
    if (case_.output == MatmulOutput::kFP8Rows) return combine_row_bytes(CombineFormat::kFP8, case_.columns);
    return columns_ * (case_.output == MatmulOutput::kFP8 ? 1 : 2);
  }

  void make_scales(size_t num_experts) {
    const size_t num_groups = ceil_div<size_t>(inner_, 128),
                 num_column_groups = ceil_div<size_t>(weight_columns_, 128);
    const std::vector<float> row_scales = random_scales(num_groups * stride(), 3),
                             weight_scales = random_scales(num_experts * num_column_groups * num_groups, 4);
    // Products of fp8 are large; gates that are must not be all there are.
    constexpr float kSmaller = 0.01f;
    std::vector<float> smaller = row_scales;
    for (float& scale : smaller) scale *= kSmaller;
    for (size_t i = 0; i < rows_.values.size(); ++i)
      rows_.values[i] *= smaller[i % inner_ / 128 * stride() + i / inner_];
    for (size_t i = 0; i < weights_.values.size(); ++i) {
      const size_t expert = i / inner_ / weight_columns_, column = i / inner_ % weight_columns_;
      weights_.values[i] *=
          weight_scales[(expert * num_column_groups + column / 128) * num_groups + i % inner_ / 128];
    }
    row_scales_ = must(rank_.upload(smaller));
    weight_scales_ = must(rank_.upload(weight_scales));
  }
  void make_coded_weights(size_t num_experts) {
    const CodedWeights weights(case_.tuning.weights, num_experts, weight_columns_ * inner_, 2);
    weights_ = weights;
    code_scales_ = must(rank_.upload(weights.scales));
    if (!weights.tensor_scales.empty()) tensor_scales_ = must(rank_.upload(weights.tensor_scales));
  }
  void make_buffers() {
    matmul_ = must(GroupedMatmul::create(rank_, shape()));
    rows_buffer_ = must(rank_.upload(rows_.bytes));
    weights_buffer_ = must(rank_.upload(weights_.bytes));
    offsets_buffer_ = must(rank_.upload(offsets_));
    bias_buffer_ = must(rank_.upload(bias_));
    row_weights_buffer_ = must(rank_.upload(row_weights_));
    output_ = must(rank_.allocate<uint8_t>(num_rows() * row_bytes()));
    output_scales_ = must(rank_.allocate<float>(ceil_div<size_t>(columns_, 128) * stride()));
    tensors_ = {.rows = rows_buffer_.data(),
                .weights = weights_buffer_.data(),
                .output = output_.data(),
                .row_offsets = offsets_buffer_.data(),
                .row_scales = row_scales_.data(),
                .weight_scales = weight_scales_.data(),
                .bias = case_.has_bias ? bias_buffer_.data() : nullptr,
                .row_weights = case_.has_row_weights ? row_weights_buffer_.data() : nullptr,
                .output_scales = case_.output == MatmulOutput::kFP8 ? output_scales_.data() : nullptr};
    if (is_coded(case_.tuning.weights)) tensors_.weight_scales = code_scales_.data();
    if (tensor_scales_.size() != 0) tensors_.weight_tensor_scales = tensor_scales_.data();
  }

  // The sum of a column of the weights with its bias, and what it may be off by.
  std::pair<double, double> sum_of(size_t row, size_t weight_column) const {
    const size_t expert = static_cast<size_t>(group_of_row_[row]);
    const reference::MatmulValue sum = reference::multiply(
        rows_.at(row, inner_), weights_.at(expert * weight_columns_ + weight_column, inner_));
    const double bias =
        case_.has_bias ? static_cast<double>(bias_[expert * weight_columns_ + weight_column]) : 0.0;
    const double value = sum.value + bias;
    return {value, sum.magnitude * reference::sum_error(case_.tuning.element, inner_) +
                       (std::abs(value) + std::abs(bias)) * 0x1p-23};
  }
  reference::GatedValue expected(size_t row, size_t column) const {
    if (!case_.is_gated()) {
      const auto [value, error] = sum_of(row, column);
      const double weight = case_.has_row_weights ? static_cast<double>(row_weights_[row]) : 1.0;
      return {value * weight, std::abs(weight) * error + std::abs(value * weight) * 0x1p-23};
    }
    const bool is_stacked = case_.gate_layout == GateLayout::kStacked;
    const auto [gate, gate_error] = sum_of(row, is_stacked ? column : 2 * column);
    const auto [up, up_error] = sum_of(row, is_stacked ? columns_ + column : 2 * column + 1);
    return reference::activate(case_.activation, gate, gate_error, up, up_error);
  }
  static std::string describe(size_t row, size_t column, double value, double expected, double bound) {
    char text[160];
    std::snprintf(text, sizeof(text), "row %zu, column %zu: %g instead of %g (at most %g off)", row, column,
                  value, expected, bound);
    return text;
  }

  // Bound: the sums' error through the activation, and the rounding to bf16.
  std::string compare_bf16(const std::vector<uint8_t>& output, size_t row) const {
    for (size_t column = 0; column < columns_; ++column) {
      const size_t at = 2 * (row * columns_ + column);
      const double value =
          static_cast<double>(to_float(bf16{static_cast<uint16_t>(output[at] | output[at + 1] << 8)}));
      const reference::GatedValue right = expected(row, column);
      const double bound = right.error + (std::abs(right.value) + right.error) * 0x1p-8;
      if (!(std::abs(value - right.value) <= bound)) return describe(row, column, value, right.value, bound);
    }
    return "";
  }
  // The scale of a row's columns from `first` on: in the tensor of scales, or in the row, behind its codes.
  float scale_of(const std::vector<uint8_t>& output, const std::vector<float>& scales, size_t row,
                 size_t first) const {
    if (case_.output == MatmulOutput::kFP8) return scales[first / 128 * stride() + row];
    float scale = 0;
    std::memcpy(&scale, &output[row * row_bytes() + columns_ + first / 128 * sizeof(float)], sizeof(scale));
    return scale;
  }
  // Bound: the sums' error through the activation, half a unit of e4m3 in the last place, or half of its
  // smallest number. A scale may be off by what its largest element may be.
  std::string compare_fp8(const std::vector<uint8_t>& output, const std::vector<float>& scales,
                          size_t row) const {
    for (size_t first = 0; first < columns_; first += 128) {
      const double scale = static_cast<double>(scale_of(output, scales, row, first));
      double amax = 1e-4, error = 0;
      for (size_t column = first; column < std::min(columns_, first + 128); ++column) {
        const double value = static_cast<double>(to_float(e4m3{output[row * row_bytes() + column]})) * scale;
        const reference::GatedValue right = expected(row, column);
        const double bound =
            right.error + (std::abs(right.value) + right.error) * (0x1p-4 + 0x1p-20) + scale * 0x1p-10;
        if (!(std::abs(value - right.value) <= bound))
          return describe(row, column, value, right.value, bound);
        amax = std::max(amax, std::abs(right.value));
        error = std::max(error, right.error);
      }
      if (!(std::abs(scale * 448 - amax) <= error + amax * 0x1p-20))
        return "scale of " + describe(row, first, scale, amax / 448, error / 448);
    }
    if (case_.output == MatmulOutput::kFP8Rows)
      for (size_t i = columns_ / 32 * 33; i < row_bytes(); ++i)
        if (output[row * row_bytes() + i] != kPoison)
          return "row " + std::to_string(row) + " was written behind its scales";
    return "";
  }
  std::string compare_untouched(const std::vector<uint8_t>& output, const std::vector<float>& scales,
                                size_t row) const {
    for (size_t i = row * row_bytes(); i < (row + 1) * row_bytes(); ++i)
      if (output[i] != kPoison) return "row " + std::to_string(row) + " of no group was written";
    for (size_t group = 0; group * 128 < columns_; ++group)
      if (std::bit_cast<uint32_t>(scales[group * stride() + row]) != 0x01010101u * kPoison)
        return "a scale of row " + std::to_string(row) + ", which is of no group, was written";
    return "";
  }

  EpilogueCase case_;
  Rank& rank_;
  size_t inner_ = 0, weight_columns_ = 0, columns_ = 0;
  std::vector<int> group_of_row_;  // -1: none
  std::vector<uint32_t> offsets_;
  Operand rows_, weights_;
  std::vector<float> bias_, row_weights_;
  std::unique_ptr<GroupedMatmul> matmul_;
  Buffer<uint8_t> rows_buffer_, weights_buffer_, code_scales_, output_;
  Buffer<float> row_scales_, weight_scales_, tensor_scales_, bias_buffer_, row_weights_buffer_,
      output_scales_;
  Buffer<uint32_t> offsets_buffer_;
  GroupedMatmulTensors tensors_;
};

// The tunings that have a kernel with the epilogue.
std::vector<MatmulTuning> tunings_of(MatmulEpilogue epilogue) {
  std::vector<MatmulTuning> tunings;
  for (const MatmulTuning& tuning : kMatmulTunings)
    if (has_matmul_kernel(epilogue, tuning)) tunings.push_back(tuning);
  return tunings;
}

class MatmulEpilogueTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world_ = must(World::create({.target = GetParam()}));
  }
  Rank& rank() { return world_->rank(0); }
  void expect_right(const EpilogueCase& epilogue_case) {
    EXPECT_EQ(EpilogueHarness(rank(), epilogue_case).compare(), "") << epilogue_case.name();
  }

 private:
  std::unique_ptr<World> world_;
};

INSTANTIATE_TEST_SUITE_P(Targets, MatmulEpilogueTest,
                         ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda), [](const auto& info) {
                           return info.param == TargetChoice::kHost ? "Host" : "Cuda";
                         });

TEST_P(MatmulEpilogueTest, ABiasPerExpertAndAWeightPerRow) {
  for (const MatmulTuning& tuning : sweep<MatmulTuning>(tunings_of(MatmulEpilogue::kAffine)))
    for (const int columns : sweep({8, 264}))
      for (const bool has_bias : {true, false})
        for (const bool has_row_weights : {true, false})
          expect_right({.tuning = tuning,
                        .group_rows = {1, 0, 66},
                        .columns = columns,
                        .has_bias = has_bias,
                        .has_row_weights = has_row_weights});
}

TEST_P(MatmulEpilogueTest, GatesAndUpsBecomeBF16) {
  for (const MatmulTuning& tuning : sweep<MatmulTuning>(tunings_of(MatmulEpilogue::kGated)))
    for (const GateLayout gate_layout : kGateLayouts)
      expect_right({.tuning = tuning,
                    .activation = Activation::kSiLU,
                    .gate_layout = gate_layout,
                    .columns = tuning.element == MatmulElement::kFP8 ? 192 : 200});
}

TEST_P(MatmulEpilogueTest, GatesAndUpsBecomeFP8WithScales) {
  for (const MatmulTuning& tuning : sweep<MatmulTuning>(tunings_of(MatmulEpilogue::kGatedFP8)))
    for (const GateLayout gate_layout : kGateLayouts)
      for (const int columns : sweep({64, 320}))
        expect_right({.tuning = tuning,
                      .activation = Activation::kSiLU,
                      .gate_layout = gate_layout,
                      .output = MatmulOutput::kFP8,
                      .columns = columns});
}

// Rows as a combine in fp8 takes them; 384 columns end within the second tile of 256.
TEST_P(MatmulEpilogueTest, SumsBecomeRowsOfFP8) {
  for (const MatmulTuning& tuning : sweep<MatmulTuning>(tunings_of(MatmulEpilogue::kAffineFP8)))
    for (const int columns : sweep({128, 384}))
      for (const bool is_affine : {true, false})
        expect_right({.tuning = tuning,
                      .output = MatmulOutput::kFP8Rows,
                      .columns = columns,
                      .has_bias = is_affine,
                      .has_row_weights = is_affine});
}

TEST_P(MatmulEpilogueTest, EveryActivationWithAndWithoutABias) {
  const MatmulTuning bf16_tuning =
                         choose_matmul_tuning(MatmulEpilogue::kGated, MatmulElement::kBF16, 8, 64, 64),
                     fp8_tuning =
                         choose_matmul_tuning(MatmulEpilogue::kGatedFP8, MatmulElement::kFP8, 8, 64, 64);
  for (const Activation activation : kActivations)
    for (const GateLayout gate_layout : kGateLayouts)
      for (const bool has_bias : {true, false})
        for (const bool is_fp8 : {true, false})
          expect_right({.tuning = is_fp8 ? fp8_tuning : bf16_tuning,
                        .activation = activation,
                        .gate_layout = gate_layout,
                        .output = is_fp8 ? MatmulOutput::kFP8 : MatmulOutput::kBF16,
                        .group_rows = {5, 20},
                        .columns = is_fp8 ? 128 : 72,
                        .has_bias = has_bias});
}

TEST_P(MatmulEpilogueTest, TheSameBitsForEveryNumberOfBlocks) {
  for (const MatmulEpilogue epilogue : {MatmulEpilogue::kAffine, MatmulEpilogue::kGated,
                                        MatmulEpilogue::kGatedFP8, MatmulEpilogue::kAffineFP8})
    for (const MatmulTuning& tuning : sweep<MatmulTuning>(tunings_of(epilogue))) {
      std::vector<uint8_t> expected;
      for (const int num_blocks : repeats({1, 2, 7})) {
        EpilogueHarness harness(
            rank(),
            {.tuning = tuning,
             .activation = epilogue == MatmulEpilogue::kAffine || epilogue == MatmulEpilogue::kAffineFP8
                               ? Activation::kNone
                               : Activation::kSiLU,
             .output = epilogue == MatmulEpilogue::kGatedFP8    ? MatmulOutput::kFP8
                       : epilogue == MatmulEpilogue::kAffineFP8 ? MatmulOutput::kFP8Rows
                                                                : MatmulOutput::kBF16,
             .group_rows = {70, 0, 30},
             .num_blocks = num_blocks});
        ASSERT_TRUE(harness.run().ok());
        const std::vector<uint8_t> output = harness.output();
        if (expected.empty()) expected = output;
        EXPECT_EQ(output, expected) << to_string(tuning) << " on " << num_blocks << " blocks";
      }
    }
}

TEST_P(MatmulEpilogueTest, InfinitiesAndNansGoThroughAnActivationAsByItsDefinition) {
  // The products are 0: gate and up are what the bias says.
  const auto output_of = [&](Activation activation, float gate, float up) {
    std::vector<bf16> row(8), weights(16 * 8);
    std::vector<float> bias(16, 0.0f);
    bias[0] = gate;
    bias[8] = up;
    const auto rows_buffer = must(rank().upload(row));
    const auto weights_buffer = must(rank().upload(weights));
    const auto bias_buffer = must(rank().upload(bias));
    const auto offsets = must(rank().upload(std::vector<uint32_t>{0, 1}));
    auto output = must(rank().allocate<bf16>(8));
    const auto matmul = must(GroupedMatmul::create(
        rank(), {.inner = 8, .columns = 16, .activation = activation, .max_rows = 1, .num_blocks = 1}));
    EXPECT_TRUE(matmul
                    ->run({.rows = rows_buffer.data(),
                           .weights = weights_buffer.data(),
                           .output = output.data(),
                           .row_offsets = offsets.data(),
                           .bias = bias_buffer.data()})
                    .ok());
    EXPECT_TRUE(rank().synchronize().ok());
    return to_float(must(output.download())[0]);
  };
  for (const Activation activation : kActivations) {
    EXPECT_TRUE(std::isnan(output_of(activation, NAN, 1))) << to_string(activation);
    EXPECT_TRUE(std::isnan(output_of(activation, 1, NAN))) << to_string(activation);
    EXPECT_EQ(output_of(activation, -1e20f, 1), 0.0f) << to_string(activation);
  }
  EXPECT_EQ(output_of(Activation::kSiLU, INFINITY, 1), INFINITY);
  EXPECT_EQ(output_of(Activation::kGELU, INFINITY, 1), INFINITY);
  EXPECT_EQ(output_of(Activation::kClampedSwiGLU, INFINITY, INFINITY), 56.0f);
  EXPECT_EQ(output_of(Activation::kClampedSwiGLU, 100, -100), -42.0f);
}

TEST_P(MatmulEpilogueTest, WhatThereIsNoKernelForIsRefusedByName) {
  const GroupedMatmulShape good{.num_groups = 2,
                                .element = MatmulElement::kFP8,
                                .inner = 64,
                                .columns = 256,
                                .activation = Activation::kSiLU,
                                .output = MatmulOutput::kFP8,
                                .max_rows = 10};
  const auto message_of = [&](auto change) {
    GroupedMatmulShape shape = good;
    change(shape);
    return GroupedMatmul::create(rank(), shape).status().message();
  };
  EXPECT_EQ(message_of([](auto&) {}), "");
  EXPECT_NE(
      message_of([](auto& s) { s.columns = 64; }).find("columns: 64 must be a positive multiple of 128"),
      std::string::npos);
  EXPECT_NE(message_of([](auto& s) { s.element = MatmulElement::kBF16; }).find("output: fp8"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& s) { s.activation = Activation::kNone; }).find("output: fp8"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& s) {
              s.tuning = MatmulTuning{64, 128, 128, 8, MatmulSharing::kNone, MatmulElement::kFP8};
            }).find("64x128x128x8 fp8 with an activation"),
            std::string::npos);
  const auto message_of_rows = [&](auto change) {
    return message_of([&](auto& s) {
      s.activation = Activation::kNone;
      s.output = MatmulOutput::kFP8Rows;
      change(s);
    });
  };
  EXPECT_EQ(message_of_rows([](auto&) {}), "");
  EXPECT_NE(message_of_rows([](auto& s) {
              s.activation = Activation::kSiLU;
            }).find("output: fp8-rows needs activation none, not silu"),
            std::string::npos);
  EXPECT_NE(message_of_rows([](auto& s) {
              s.columns = 192;
            }).find("columns: 192 must be a positive multiple of 128"),
            std::string::npos);
  EXPECT_NE(message_of_rows([](auto& s) {
              s.element = MatmulElement::kBF16;
              s.weights = WeightFormat::kMXFP8;
            }).find("output: fp8-rows needs weights as-rows, not mxfp8"),
            std::string::npos);
  EXPECT_NE(message_of_rows([](auto& s) {
              s.element = MatmulElement::kBF16;
              s.tuning = MatmulTuning{64, 256, 64, 5};
            }).find("64x256x64x5 that writes rows of fp8"),
            std::string::npos);
  const auto matmul = must(GroupedMatmul::create(rank(), good));
  const auto memory = must(rank().allocate<float>(4096));
  GroupedMatmulTensors tensors{.rows = memory.data(),
                               .weights = memory.data(),
                               .output = memory.data(),
                               .row_offsets = reinterpret_cast<const uint32_t*>(memory.data()),
                               .row_scales = memory.data(),
                               .weight_scales = memory.data()};
  EXPECT_NE(matmul->run(tensors).message().find("output_scales"), std::string::npos);
  tensors.row_weights = memory.data();
  EXPECT_NE(matmul->run(tensors).message().find("row_weights"), std::string::npos);
}

TEST(MatmulEpilogueSimulation, AnyInterleavingOnAWeakMemory) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto world =
        must(World::create({.target = TargetChoice::kHost,
                            .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true}}));
    const EpilogueCase gated{.tuning = {64, 256, 128, 5, MatmulSharing::kNone, MatmulElement::kFP8},
                             .activation = Activation::kSiLU,
                             .output = MatmulOutput::kFP8,
                             .group_rows = {3, 0, 20, 1},
                             .inner = 144,
                             .columns = 192,
                             .num_blocks = 2};
    EXPECT_EQ(EpilogueHarness(world->rank(0), gated).compare(), "") << "seed " << seed;
    const EpilogueCase rows_of_fp8{.tuning = {64, 128, 128, 8, MatmulSharing::kNone, MatmulElement::kFP8},
                                   .output = MatmulOutput::kFP8Rows,
                                   .group_rows = {3, 0, 20, 1},
                                   .inner = 144,
                                   .num_blocks = 2};
    EXPECT_EQ(EpilogueHarness(world->rank(0), rows_of_fp8).compare(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace switchyard
