// Grouped matmuls that take rows in a token format, as dispatch writes them, and decode them to bf16: the
// same bits as the same matmul of rows that were decoded before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layer_kernels_fixture.hpp"
#include "matmul_operand.hpp"
#include "reference/token_format.hpp"
#include "sweep.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "switchyard/row_completion.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {
namespace {

using testing_support::bits_of;
using testing_support::CodedWeights;
using testing_support::must;
using testing_support::random_bf16;
using testing_support::random_scales;
using testing_support::sweep;

constexpr uint8_t kRowsPoison = 0xee;

struct CodedRowsCase {
  TokenFormatKind format = TokenFormatKind::kMXFP8;
  MatmulTuning tuning = kDecodingTunings[0];
  Activation activation = Activation::kNone;
  std::vector<int> group_rows = {0, 3, 66, 0, 130};
  int inner = 0;  // 0: a few stages and a part of one
  int columns = 272;
  bool is_masked = false;
  int num_scaled_groups = 0;  // the last ones, which have tensor scales of their own
  bool has_device_scale = false;
  bool swaps_experts = false;  // group g has the weights of the expert with the opposite number
  int num_blocks = 3;

  std::string name() const {
    return std::string(to_string(format)) + ", " + to_string(tuning) + ", " + to_string(activation) +
           (is_masked ? ", masked" : "");
  }
};

// The rows of a case twice, as codes and as bf16. Rows of no group are NaN.
class CodedRowsHarness {
 public:
  CodedRowsHarness(Rank& rank, const CodedRowsCase& rows_case) : case_(rows_case), rank_(rank) {
    const TokenFormatInfo format = info_of(case_.format);
    if (case_.inner == 0)
      case_.inner = align_up(2 * case_.tuning.stage_inner + 32,
                             std::lcm(format.hidden_multiple(), multiple_of_weights()));
    place_groups(format.row_alignment);
    make_rows(format);
    make_weights();
    offsets_ = must(rank.upload(first_rows_));
    counts_ = must(rank.upload(std::vector<uint32_t>(case_.group_rows.begin(), case_.group_rows.end())));
    std::vector<int32_t> expert_ids(case_.group_rows.size());
    std::iota(expert_ids.rbegin(), expert_ids.rend(), 0);
    expert_ids_ = must(rank.upload(expert_ids));
    row_weights_ = must(rank.upload(random_scales(num_rows_, 6)));
  }

  GroupedMatmulShape shape() const {
    GroupedMatmulShape shape{.num_groups = static_cast<int>(case_.group_rows.size()),
                             .weights = case_.tuning.weights,
                             .row_format = case_.format,
                             .inner = case_.inner,
                             .columns = case_.columns,
                             .activation = case_.activation,
                             .max_rows = static_cast<int64_t>(num_rows_),
                             .num_blocks = case_.num_blocks,
                             .tuning = case_.tuning};
    if (case_.is_masked) shape.group_capacity = capacity_;
    return shape;
  }
  GroupedMatmulTensors tensors() {
    GroupedMatmulTensors tensors{.rows = codes_.data(),
                                 .weights = weights_.data(),
                                 .output = output_.data(),
                                 .row_counts = counts_.data(),
                                 .row_scales = scales_.data(),
                                 .weight_scales = weight_scales_.data(),
                                 .bias = bias_.data()};
    if (!case_.is_masked) tensors.row_offsets = offsets_.data();
    if (case_.swaps_experts) tensors.expert_ids = expert_ids_.data();
    if (case_.activation == Activation::kNone) tensors.row_weights = row_weights_.data();
    if (has_tensor_scale() && !case_.has_device_scale) tensors.row_tensor_scale = kTensorScale;
    if (case_.has_device_scale) tensors.device_row_tensor_scale = device_scale_.data();
    if (case_.num_scaled_groups > 0) {
      tensors.row_tensor_scales = group_scales_.data();
      tensors.num_row_tensor_scales = case_.num_scaled_groups;
    }
    return tensors;
  }
  // The output of a matmul of the codes, or of the same rows in bf16.
  std::vector<uint16_t> of_codes() { return run(shape(), tensors()); }
  std::vector<uint16_t> of_bf16() {
    GroupedMatmulShape in_bf16 = shape();
    in_bf16.row_format = TokenFormatKind::kBF16;
    GroupedMatmulTensors tensors = this->tensors();
    tensors.rows = decoded_.data();
    tensors.row_scales = nullptr;
    tensors.row_tensor_scale = 1;
    tensors.device_row_tensor_scale = nullptr;
    tensors.row_tensor_scales = nullptr;
    tensors.num_row_tensor_scales = 0;
    return run(in_bf16, tensors);
  }

 private:
  static constexpr float kTensorScale = 0.01f;

  bool has_tensor_scale() const { return info_of(case_.format).has_tensor_scale(); }
  int multiple_of_weights() const {
    return is_coded(case_.tuning.weights) ? switchyard::inner_multiple_of(case_.tuning.weights) : 8;
  }
  size_t num_output_columns() const {
    return static_cast<size_t>(case_.activation == Activation::kNone ? case_.columns : case_.columns / 2);
  }

  void place_groups(uint32_t alignment) {
    const int most = *std::max_element(case_.group_rows.begin(), case_.group_rows.end());
    capacity_ = align_up(static_cast<uint32_t>(most) + 1, alignment);
    num_rows_ = case_.is_masked ? 0 : alignment;  // a gap in front of the first group
    for (const int count : case_.group_rows) {
      first_rows_.push_back(num_rows_);
      num_rows_ += case_.is_masked ? capacity_ : align_up(static_cast<uint32_t>(count), alignment);
    }
    first_rows_.push_back(num_rows_);
    num_rows_ += 5;
  }

  void make_rows(const TokenFormatInfo& format) {
    const size_t inner = static_cast<size_t>(case_.inner), row_bytes = format.row_bytes(case_.inner);
    std::vector<uint8_t> codes(num_rows_ * row_bytes, 0xff),
        scales(format.scale_tensor_bytes(num_rows_, case_.inner).value(), 0xff);
    std::vector<bf16> decoded(num_rows_ * inner, to_bf16(NAN));
    const size_t num_groups = case_.group_rows.size(),
                 first_scaled = num_groups - static_cast<size_t>(case_.num_scaled_groups);
    std::vector<float> tensor_scales = random_scales(num_groups, 7);
    for (float& scale : tensor_scales) scale *= kTensorScale;
    for (size_t group = 0; group < num_groups; ++group)
      for (size_t i = 0; i < static_cast<size_t>(case_.group_rows[group]); ++i) {
        const size_t row = first_rows_[group] + i;
        std::vector<bf16> token = random_bf16(inner, row);
        // Groups of elements of all sizes, and of zeros.
        for (size_t k = 0; k < inner; ++k)
          token[k] = to_bf16(std::ldexp(to_float(token[k]), static_cast<int>((row + k / 16) % 24) - 12) *
                             static_cast<float>((k / 128 + row) % 5 != 0));
        const float scale = group >= first_scaled ? tensor_scales[group] : kTensorScale;
        const reference::EncodedToken encoded = reference::encode_token(case_.format, token, scale);
        std::copy(encoded.codes.begin(), encoded.codes.end(),
                  codes.begin() + static_cast<ptrdiff_t>(row * row_bytes));
        const size_t scale_bytes = static_cast<size_t>(format.scale_bytes);
        for (size_t g = 0; g * scale_bytes < encoded.scales.size(); ++g)
          std::copy_n(encoded.scales.begin() + static_cast<ptrdiff_t>(g * scale_bytes), scale_bytes,
                      scales.begin() + static_cast<ptrdiff_t>(reference::scale_offset(
                                           case_.format, row, g, case_.inner, num_rows_)));
        const std::vector<bf16> values = reference::decoded(encoded);
        std::copy(values.begin(), values.end(), decoded.begin() + static_cast<ptrdiff_t>(row * inner));
      }
    codes_ = must(rank_.upload(codes));
    scales_ = must(rank_.upload(scales));
    decoded_ = must(rank_.upload(decoded));
    device_scale_ = must(rank_.upload(std::vector<float>{kTensorScale}));
    group_scales_ = must(rank_.upload(std::vector<float>(
        tensor_scales.begin() + static_cast<ptrdiff_t>(first_scaled), tensor_scales.end())));
  }

  void make_weights() {
    const size_t num_experts = case_.group_rows.size(),
                 size = static_cast<size_t>(case_.columns) * static_cast<size_t>(case_.inner);
    if (is_coded(case_.tuning.weights)) {
      const CodedWeights coded(case_.tuning.weights, num_experts, size, 2);
      weights_ = must(rank_.upload(coded.bytes));
      weight_scales_ = must(rank_.upload(coded.scales));
    } else {
      weights_ =
          must(rank_.upload(testing_support::Operand(MatmulElement::kBF16, num_experts * size, 2).bytes));
    }
    bias_ = must(rank_.upload(random_scales(num_experts * static_cast<size_t>(case_.columns), 5)));
    output_ = must(rank_.allocate<bf16>(num_rows_ * num_output_columns()));
  }

  std::vector<uint16_t> run(const GroupedMatmulShape& shape, const GroupedMatmulTensors& tensors) {
    const auto matmul = must(GroupedMatmul::create(rank_, shape));
    EXPECT_TRUE(output_.fill_bytes(kRowsPoison).ok());
    const Status status = matmul->run(tensors);
    EXPECT_TRUE(status.ok()) << status.to_string();
    const Status synchronized = rank_.synchronize();
    EXPECT_TRUE(synchronized.ok()) << synchronized.to_string();
    return bits_of(must(output_.download()));
  }

  CodedRowsCase case_;
  Rank& rank_;
  std::vector<uint32_t> first_rows_;
  uint32_t num_rows_ = 0, capacity_ = 0;
  Buffer<uint8_t> codes_, scales_, weights_, weight_scales_;
  Buffer<bf16> decoded_, output_;
  Buffer<float> group_scales_, device_scale_, bias_, row_weights_;
  Buffer<int32_t> expert_ids_;
  Buffer<uint32_t> offsets_, counts_;
};

class CodedRowsTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world_ = must(World::create({.target = GetParam()}));
  }
  Rank& rank() { return world_->rank(0); }
  void expect_same(const CodedRowsCase& rows_case) {
    CodedRowsHarness harness(rank(), rows_case);
    const std::vector<uint16_t> of_codes = harness.of_codes();
    EXPECT_EQ(of_codes, harness.of_bf16()) << rows_case.name();
    // Not all of it is poison, and groups have outputs that differ.
    std::vector<uint16_t> values = of_codes;
    std::sort(values.begin(), values.end());
    EXPECT_GT(std::unique(values.begin(), values.end()) - values.begin(), 100) << rows_case.name();
  }
  std::string refusal_of(const GroupedMatmulShape& shape) {
    return GroupedMatmul::create(rank(), shape).status().message();
  }

 private:
  std::unique_ptr<World> world_;
};

INSTANTIATE_TEST_SUITE_P(Targets, CodedRowsTest, ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda),
                         [](const auto& info) {
                           return info.param == TargetChoice::kHost ? "Host" : "Cuda";
                         });

TEST_P(CodedRowsTest, EveryFormatIsWhatItsRowsAreInBF16) {
  for (const TokenFormatKind format : kTokenFormatKinds)
    if (format != TokenFormatKind::kBF16) expect_same({.format = format});
}

TEST_P(CodedRowsTest, EveryTuningWithAndWithoutAnActivation) {
  for (const MatmulTuning& tuning : kMatmulTunings)
    if (has_decoding_matmul_kernel(tuning))
      for (const Activation activation : {Activation::kNone, Activation::kSiLU})
        expect_same({.format = tuning.tile_rows == 64 ? TokenFormatKind::kMXFP6 : TokenFormatKind::kNVFP4,
                     .tuning = tuning,
                     .activation = activation});
}

TEST_P(CodedRowsTest, MaskedGroupsAndTensorScalesOfSomeGroups) {
  for (const bool is_masked : {false, true}) {
    expect_same({.format = TokenFormatKind::kMXFP8, .is_masked = is_masked});
    for (const int num_scaled_groups : {0, 3, 5})
      expect_same({.format = TokenFormatKind::kNVFP4ByExpert,
                   .is_masked = is_masked,
                   .num_scaled_groups = num_scaled_groups,
                   .has_device_scale = num_scaled_groups == 3,
                   .swaps_experts = num_scaled_groups == 5});
  }
}

TEST_P(CodedRowsTest, RowsShorterThanAStageAndManyOfThem) {
  for (const MatmulTuning& tuning : sweep(kDecodingTunings)) {
    expect_same({.format = TokenFormatKind::kMXFP8, .tuning = tuning, .inner = 32, .columns = 8});
    expect_same({.format = TokenFormatKind::kMXFP4, .tuning = tuning, .group_rows = {300}, .inner = 1056});
  }
}

TEST_P(CodedRowsTest, TheSameBitsForEveryNumberOfBlocks) {
  CodedRowsCase rows_case{.format = TokenFormatKind::kNVFP4, .tuning = kDecodingTunings[1], .num_blocks = 1};
  const std::vector<uint16_t> of_one = CodedRowsHarness(rank(), rows_case).of_codes();
  for (const int num_blocks : {2, 7, 64}) {
    rows_case.num_blocks = num_blocks;
    EXPECT_EQ(CodedRowsHarness(rank(), rows_case).of_codes(), of_one) << num_blocks << " blocks";
  }
}

TEST_P(CodedRowsTest, AMatmulIsChosenByTheRowsOfAGroup) {
  for (const int64_t num_rows : {1, 100, 1000}) {
    GroupedMatmulShape shape{
        .row_format = TokenFormatKind::kMXFP8, .inner = 64, .columns = 512, .max_rows = num_rows};
    EXPECT_EQ(must(GroupedMatmul::create(rank(), shape))->tuning(),
              choose_decoding_tuning(WeightFormat::kAsRows, num_rows, 512));
    shape.weights = WeightFormat::kMXFP4;
    EXPECT_EQ(must(GroupedMatmul::create(rank(), shape))->tuning(),
              choose_matmul_tuning(WeightFormat::kMXFP4, num_rows));
  }
}

TEST_P(CodedRowsTest, WhatItCannotDecodeIsRefusedByName) {
  const GroupedMatmulShape good{
      .row_format = TokenFormatKind::kNVFP4, .inner = 64, .columns = 64, .max_rows = 128};
  EXPECT_EQ(refusal_of(good), "");
  const auto expect_refused = [&](auto change, const char* message) {
    GroupedMatmulShape shape = good;
    change(shape);
    EXPECT_NE(refusal_of(shape).find(message), std::string::npos) << refusal_of(shape);
  };
  expect_refused([](auto& s) { s.inner = 48; },
                 "inner: 48 must be a positive multiple of 32 with row_format nvfp4");
  expect_refused(
      [](auto& s) {
        s.inner = 96;
        s.weights = WeightFormat::kMXFP4;
      },
      "inner: 96 must be a positive multiple of 64 with weights mxfp4 with row_format nvfp4");
  expect_refused([](auto& s) { s.element = MatmulElement::kFP8; },
                 "row_format: nvfp4 needs element bf16, not fp8");
  expect_refused([](auto& s) { s.row_format = static_cast<TokenFormatKind>(99); },
                 "row_format: there is no token format 99");
  expect_refused([](auto& s) { s.group_capacity = 100; },
                 "group_capacity: 100 must be a multiple of 128 with row_format nvfp4");
  expect_refused([](auto& s) { s.tuning = MatmulTuning{}; },
                 "tuning: there is no matmul kernel 64x128x64x8 with row_format nvfp4");

  const CodedRowsCase rows_case{.format = TokenFormatKind::kMXFP8};
  CodedRowsHarness harness(rank(), rows_case);
  const auto matmul = must(GroupedMatmul::create(rank(), harness.shape()));
  const auto expect_not_run = [&](auto change, const char* message) {
    GroupedMatmulTensors tensors = harness.tensors();
    change(tensors);
    const std::string refusal = matmul->run(tensors).message();
    EXPECT_NE(refusal.find(message), std::string::npos) << refusal;
  };
  expect_not_run([](auto& t) { t.row_scales = nullptr; }, "row_scales: must not be null");
  expect_not_run([](auto& t) { t.row_tensor_scale = 2; },
                 "row_tensor_scale: there is none with row_format mxfp8");
  const RowReadiness readiness{};
  expect_not_run([&](auto& t) { t.readiness = &readiness; },
                 "readiness: must be null with element bf16, row_format mxfp8");
  const RowCompletion completion{};
  expect_not_run([&](auto& t) { t.completion = &completion; },
                 "completion: must be null with row_format mxfp8");
  const float any_scale = 1;
  expect_not_run([&](auto& t) { t.device_row_tensor_scale = &any_scale; },
                 "device_row_tensor_scale: there is none with row_format mxfp8");
  expect_not_run([](auto& t) { t.num_row_tensor_scales = 1; }, "num_row_tensor_scales: 1 must be 0..0");
}

}  // namespace
}  // namespace switchyard
