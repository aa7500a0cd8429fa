// The tiled grouped matmul on every target that is here, against plain loops.
#include "switchyard/grouped_matmul.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "layer_kernels_fixture.hpp"
#include "matmul_operand.hpp"
#include "reference/matmul.hpp"
#include "sweep.hpp"
#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using testing_support::bits_of;
using testing_support::CodedWeights;
using testing_support::inner_multiple_of;
using testing_support::kFewCases;
using testing_support::must;
using testing_support::Operand;
using testing_support::random_scales;
using testing_support::repeats;
using testing_support::sweep;

enum class Layout { kRagged, kAligned, kMasked };

struct MatmulCase {
  std::vector<int> group_rows;
  int inner = 64;
  int columns = 128;
  Layout layout = Layout::kRagged;
  std::vector<int32_t> expert_ids;  // empty: group g has expert g
  int num_experts = 0;
  int num_rows_before = 0;  // in front of the first group
  int num_spare_rows = 0;   // after the last one
  int group_of_nans = -1;   // whose rows are NaN: what leaks from it is seen
  int num_blocks = 3;
  std::optional<MatmulTuning> tuning;
  MatmulRowScales row_scales = MatmulRowScales::kFloat;

  MatmulElement element() const { return tuning ? tuning->element : MatmulElement::kBF16; }
  WeightFormat weights() const { return tuning ? tuning->weights : WeightFormat::kAsRows; }
};

constexpr uint16_t kPoison = 0xeeee;

// One case on a rank: its memory there, and the GroupedMatmul made for it. Rows of no group hold NaN. Coded
// weights need a larger multiple of K than most cases have; it is rounded up.
class MatmulHarness {
 public:
  MatmulHarness(Rank& rank, const MatmulCase& matmul_case) : case_(matmul_case), rank_(rank) {
    place_groups();
    if (is_coded(case_.weights())) case_.inner = align_up(case_.inner, inner_multiple_of(*case_.tuning));
    const size_t inner = static_cast<size_t>(case_.inner), columns = static_cast<size_t>(case_.columns);
    const size_t num_experts = static_cast<size_t>(
        case_.num_experts > 0 ? case_.num_experts : static_cast<int>(case_.group_rows.size()));
    rows_ = Operand(case_.element(), num_rows_ * inner, 1);
    if (is_coded(case_.weights()))
      make_coded_weights(num_experts);
    else
      weights_ = Operand(case_.element(), num_experts * columns * inner, 2);
    for (size_t row = 0; row < num_rows_; ++row)
      if (group_of_row_[row] < 0 || group_of_row_[row] == case_.group_of_nans)
        rows_.set_nan(row * inner, (row + 1) * inner);
    if (case_.element() == MatmulElement::kFP8) make_scales(num_experts);
    matmul_ = must(GroupedMatmul::create(rank, shape()));
    rows_buffer_ = must(rank.upload(rows_.bytes));
    weights_buffer_ = must(rank.upload(weights_.bytes));
    output_ = must(rank.allocate<bf16>(num_rows_ * columns));
    offsets_buffer_ = must(rank.upload(offsets_));
    counts_buffer_ = must(rank.upload(counts_));
    expert_ids_ = must(rank.upload(case_.expert_ids));
    tensors_ = {.rows = rows_buffer_.data(), .weights = weights_buffer_.data(), .output = output_.data()};
    if (case_.layout != Layout::kMasked) tensors_.row_offsets = offsets_buffer_.data();
    if (case_.layout != Layout::kRagged) tensors_.row_counts = counts_buffer_.data();
    if (!case_.expert_ids.empty()) tensors_.expert_ids = expert_ids_.data();
    tensors_.row_scales = row_scales_.data();
    tensors_.weight_scales = weight_scales_.data();
    if (is_coded(case_.weights())) tensors_.weight_scales = code_scales_.data();
    if (tensor_scales_.size() != 0) tensors_.weight_tensor_scales = tensor_scales_.data();
  }

  GroupedMatmulShape shape() const {
    return {.num_groups = static_cast<int>(case_.group_rows.size()),
            .num_experts = case_.num_experts,
            .element = case_.element(),
            .row_scales = case_.row_scales,
            .weights = case_.weights(),
            .inner = case_.inner,
            .columns = case_.columns,
            .max_rows = static_cast<int64_t>(num_rows_),
            .group_capacity = case_.layout == Layout::kMasked ? static_cast<int64_t>(capacity_) : 0,
            .num_blocks = case_.num_blocks,
            .tuning = case_.tuning};
  }
  // Other rows per group, among the rows there are: of the ragged layout, and no more of them in all.
  void regroup(const std::vector<int>& group_rows) {
    case_.group_rows = group_rows;
    const size_t num_rows = num_rows_;
    place_groups();
    num_rows_ = num_rows;
    group_of_row_.resize(num_rows_, -1);
    ASSERT_TRUE(offsets_buffer_.upload(offsets_).ok());
  }
  Status clear() { return output_.fill_bytes(kPoison & 0xff); }
  Status launch() { return matmul_->run(tensors_); }

  std::vector<bf16> output() {
    EXPECT_TRUE(rank_.synchronize().ok());
    return must(output_.download());
  }
  // Runs once and says what is wrong.
  std::string compare() {
    if (Status status = clear(); !status.ok()) return status.to_string();
    if (Status status = launch(); !status.ok()) return status.to_string();
    return compare(output());
  }
  std::string compare(const std::vector<bf16>& output) const {
    const size_t inner = static_cast<size_t>(case_.inner), columns = static_cast<size_t>(case_.columns);
    reference::MatmulDifference difference;
    for (size_t row = 0; row < num_rows_; ++row)
      for (size_t column = 0; column < columns; ++column) {
        const bf16 value = output[row * columns + column];
        const std::string where = "row " + std::to_string(row) + ", column " + std::to_string(column);
        const int group = group_of_row_[row];
        if (group < 0 && value.bits != kPoison) return where + " of no group was written";
        if (group < 0 || group == case_.group_of_nans) continue;
        const size_t expert = static_cast<size_t>(
            case_.expert_ids.empty() ? group : case_.expert_ids[static_cast<size_t>(group)]);
        difference.add(case_.element(), rows_.at(row, inner), weights_.at(expert * columns + column, inner),
                       value, where);
      }
    return difference.first_bad;
  }

 private:
  // The values become code times scale.
  void make_scales(size_t num_experts) {
    const size_t inner = static_cast<size_t>(case_.inner), columns = static_cast<size_t>(case_.columns);
    const size_t num_groups = ceil_div<size_t>(inner, 128),
                 num_column_groups = ceil_div<size_t>(columns, 128);
    const size_t stride = align_up<size_t>(num_rows_, 4);
    std::vector<float> row_scales = random_scales(num_groups * stride, 3);
    if (case_.row_scales == MatmulRowScales::kPackedE8M0) row_scales = round_and_pack(row_scales, stride);
    const std::vector<float> weight_scales = random_scales(num_experts * num_column_groups * num_groups, 4);
    for (size_t i = 0; i < rows_.values.size(); ++i)
      rows_.values[i] *= row_scales[i % inner / 128 * stride + i / inner];
    for (size_t i = 0; i < weights_.values.size(); ++i) {
      const size_t expert = i / inner / columns, column = i / inner % columns;
      weights_.values[i] *=
          weight_scales[(expert * num_column_groups + column / 128) * num_groups + i % inner / 128];
    }
    if (case_.row_scales == MatmulRowScales::kFloat) row_scales_ = must(rank_.upload(row_scales));
    if (case_.row_scales == MatmulRowScales::kFloatByRow) {
      std::vector<float> by_row(num_rows_ * num_groups);
      for (size_t i = 0; i < by_row.size(); ++i)
        by_row[i] = row_scales[i % num_groups * stride + i / num_groups];
      row_scales_ = must(rank_.upload(by_row));
    }
    weight_scales_ = must(rank_.upload(weight_scales));
  }
  void make_coded_weights(size_t num_experts) {
    const CodedWeights weights(case_.weights(), num_experts,
                               static_cast<size_t>(case_.columns) * static_cast<size_t>(case_.inner), 2);
    weights_ = weights;
    code_scales_ = must(rank_.upload(weights.scales));
    if (!weights.tensor_scales.empty()) tensor_scales_ = must(rank_.upload(weights.tensor_scales));
  }
  // Returns powers of two instead of the scales, which also become codes, four of a row in a word.
  std::vector<float> round_and_pack(const std::vector<float>& scales, size_t stride) {
    const PackedScaleLayout layout{static_cast<int>(scales.size() / stride), static_cast<uint32_t>(stride)};
    std::vector<float> words(layout.bytes().value() / sizeof(float));
    std::vector<float> rounded;
    for (size_t i = 0; i < scales.size(); ++i) {
      const e8m0 code = to_e8m0_round_up(scales[i]);
      rounded.push_back(to_float(code));
      reinterpret_cast<uint8_t*>(
          words.data())[layout.offset(static_cast<int>(i / stride), static_cast<int64_t>(i % stride))] =
          code.bits;
    }
    row_scales_ = must(rank_.upload(words));
    return rounded;
  }
  void place_groups() {
    counts_.clear();
    offsets_.clear();
    group_of_row_.clear();
    const size_t num_groups = case_.group_rows.size();
    for (const int count : case_.group_rows) {
      counts_.push_back(static_cast<uint32_t>(count));
      capacity_ = std::max(capacity_, static_cast<size_t>(count));
    }
    size_t row = static_cast<size_t>(case_.num_rows_before);
    for (size_t g = 0; g < num_groups; ++g) {
      if (case_.layout == Layout::kAligned) row = align_up<size_t>(row, 16);
      if (case_.layout == Layout::kMasked) row = g * capacity_;
      offsets_.push_back(static_cast<uint32_t>(row));
      group_of_row_.resize(row, -1);
      row += counts_[g];
      group_of_row_.resize(row, static_cast<int>(g));
    }
    offsets_.push_back(static_cast<uint32_t>(row));
    num_rows_ = case_.layout == Layout::kMasked ? num_groups * capacity_ : row;
    num_rows_ += static_cast<size_t>(case_.num_spare_rows);
    group_of_row_.resize(num_rows_, -1);
  }

  MatmulCase case_;
  Rank& rank_;
  size_t num_rows_ = 0, capacity_ = 0;
  std::vector<int> group_of_row_;  // -1: none
  std::vector<uint32_t> offsets_, counts_;
  Operand rows_, weights_;
  std::unique_ptr<GroupedMatmul> matmul_;
  Buffer<uint8_t> rows_buffer_, weights_buffer_, code_scales_;
  Buffer<bf16> output_;
  Buffer<float> row_scales_, weight_scales_, tensor_scales_;
  Buffer<uint32_t> offsets_buffer_, counts_buffer_;
  Buffer<int32_t> expert_ids_;
  GroupedMatmulTensors tensors_;
};

std::string compare(Rank& rank, const MatmulCase& matmul_case) {
  return MatmulHarness(rank, matmul_case).compare();
}

class GroupedMatmulTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world_ = must(World::create({.target = GetParam()}));
  }
  Rank& rank() { return world_->rank(0); }
  World& world() { return *world_; }
  // Blocks for a tuning, whether or not they work in pairs.
  int budget(const MatmulTuning& tuning, int num_pairs) {
    return num_pairs *
           static_cast<int>(matmul_kernels(device_of(rank()).target()).find(tuning)->cluster_blocks);
  }

 private:
  std::unique_ptr<World> world_;
};

INSTANTIATE_TEST_SUITE_P(Targets, GroupedMatmulTest,
                         ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda), [](const auto& info) {
                           return info.param == TargetChoice::kHost ? "Host" : "Cuda";
                         });

TEST_P(GroupedMatmulTest, EveryTuningWithRowsOfAnyNumber) {
  std::vector<int> group_rows{0, 1, 63, 0, 64, 129, 300, 16, 0};
  if (kFewCases) group_rows = {0, 1, 65};
  for (const MatmulTuning& tuning : kMatmulTunings)
    EXPECT_EQ(compare(rank(), {.group_rows = group_rows,
                               .inner = 208,
                               .columns = 264,
                               .num_blocks = budget(tuning, 3),
                               .tuning = tuning}),
              "")
        << to_string(tuning);
}

TEST_P(GroupedMatmulTest, InnerSizesAndColumnsThatAreNoMultiplesOfATile) {
  for (const MatmulTuning& tuning : sweep(kMatmulTunings))
    // The longest has more steps of fp8 than a warp has lanes, which load scales so far ahead.
    for (const int inner : sweep({8, 16, 64, 72, 144, 320, 1344, 4240, 1008})) {
      if (inner % inner_multiple_of(tuning) != 0) continue;
      if (!is_coded(tuning.weights) && (inner == 320 || inner == 1344)) continue;
      if (tuning.element != MatmulElement::kFP8 && inner == 4240) continue;
      const bool is_long = inner > 1000;  // which fills the stages several times, whatever the columns
      for (const int columns : inner > 4000 ? std::vector<int>{136}
                               : is_long    ? repeats({8, 120, 520, 136})
                                            : std::vector<int>{8, 120, 136, 520})
        EXPECT_EQ(compare(rank(), {.group_rows = {5, 70},
                                   .inner = inner,
                                   .columns = columns,
                                   .num_blocks = budget(tuning, 2),
                                   .tuning = tuning}),
                  "")
            << to_string(tuning) << ", K " << inner << ", N " << columns;
    }
}

// Numbers of scale groups that do and do not fill the last word of packed ones.
TEST_P(GroupedMatmulTest, ScalesThatArePackedOrLieByRow) {
  for (const MatmulTuning& tuning : kMatmulTunings) {
    if (tuning.element != MatmulElement::kFP8) continue;
    for (const MatmulRowScales row_scales : {MatmulRowScales::kPackedE8M0, MatmulRowScales::kFloatByRow})
      for (const int inner : sweep({80, 512, 4240, 1424}))
        EXPECT_EQ(compare(rank(), {.group_rows = {3, 0, 130, 66},
                                   .inner = inner,
                                   .columns = inner > 4000 ? 136 : 264,
                                   .num_rows_before = 5,
                                   .num_spare_rows = 6,
                                   .num_blocks = budget(tuning, 2),
                                   .tuning = tuning,
                                   .row_scales = row_scales}),
                  "")
            << to_string(tuning) << ", K " << inner << ", scales " << static_cast<int>(row_scales);
  }
}

TEST_P(GroupedMatmulTest, MoreGroupsThanLanesAndAnyExpertForEach) {
  for (const MatmulTuning& tuning : sweep(kMatmulTunings)) {
    MatmulCase matmul_case{.inner = 144, .columns = 136, .num_experts = 5, .num_blocks = budget(tuning, 4)};
    matmul_case.tuning = tuning;
    std::mt19937 random(3);
    for (int g = 0; g < 100; ++g) {
      matmul_case.group_rows.push_back(random() % 3 == 0 ? static_cast<int>(random() % 20) : 0);
      matmul_case.expert_ids.push_back(static_cast<int32_t>(random() % 5));
    }
    EXPECT_EQ(compare(rank(), matmul_case), "") << to_string(tuning);
  }
}

TEST_P(GroupedMatmulTest, AllRowsInOneGroupAndNoneInAny) {
  for (const std::vector<int>& group_rows :
       sweep({std::vector<int>{2500}, std::vector<int>{0, 0}, std::vector<int>{0, 0, 700, 0}}))
    EXPECT_EQ(compare(rank(), {.group_rows = group_rows, .inner = 64, .columns = 264, .num_spare_rows = 3}),
              "");
}

TEST_P(GroupedMatmulTest, NeighboursThatAreNoNumbersAndRowsOfNobodyAreLeftAlone) {
  for (const MatmulTuning& tuning : repeats(kMatmulTunings))
    for (const int group_of_nans : {0, 1, 2})
      EXPECT_EQ(compare(rank(), {.group_rows = {33, 65, 127},
                                 .inner = 144,
                                 .num_rows_before = 7,
                                 .num_spare_rows = 40,
                                 .group_of_nans = group_of_nans,
                                 .num_blocks = budget(tuning, 1),
                                 .tuning = tuning}),
                "")
          << to_string(tuning) << ", NaN in group " << group_of_nans;
}

TEST_P(GroupedMatmulTest, LayoutsWithGapsBetweenGroups) {
  for (const Layout layout : {Layout::kAligned, Layout::kMasked})
    for (const MatmulTuning& tuning : repeats(kMatmulTunings))
      EXPECT_EQ(compare(rank(), {.group_rows = {3, 0, 130, 17, 65},
                                 .inner = 80,
                                 .columns = 144,
                                 .layout = layout,
                                 .num_spare_rows = 5,
                                 .num_blocks = budget(tuning, 2),
                                 .tuning = tuning}),
                "")
          << to_string(tuning) << (layout == Layout::kMasked ? ", masked" : ", aligned");
}

TEST_P(GroupedMatmulTest, TheSameBitsForEveryNumberOfBlocksAndEveryRun) {
  for (const MatmulTuning& tuning : repeats(kMatmulTunings)) {
    std::vector<uint16_t> expected;
    for (const int num_blocks : repeats({1, 2, 12, 5})) {
      MatmulHarness harness(rank(), {.group_rows = {40, 0, 140, 65},
                                     .inner = 144,
                                     .columns = 392,
                                     .num_blocks = budget(tuning, num_blocks),
                                     .tuning = tuning});
      for (int run = 0; run < 2; ++run) {  // the second one finds the queue as the first has left it
        ASSERT_TRUE(harness.clear().ok() && harness.launch().ok());
        const std::vector<bf16> output = harness.output();
        if (expected.empty()) {
          ASSERT_EQ(harness.compare(output), "");
          expected = bits_of(output);
        }
        EXPECT_EQ(bits_of(output), expected)
            << to_string(tuning) << " on " << num_blocks << " blocks, run " << run;
      }
    }
  }
}

TEST_P(GroupedMatmulTest, AGraphOfItReadsTheCountsAnew) {
  for (const MatmulTuning& tuning : repeats(kMatmulTunings)) {
    MatmulHarness harness(rank(), {.group_rows = {40, 0, 100},
                                   .inner = 144,
                                   .columns = 264,
                                   .num_blocks = budget(tuning, 2),
                                   .tuning = tuning});
    const auto graph = must(world().capture([&] {
      SWITCHYARD_RETURN_IF_ERROR(harness.launch());
      return harness.launch();
    }));
    for (const std::vector<int>& group_rows :
         {std::vector<int>{40, 0, 100}, {0, 140, 0}, {70, 69, 1}, {0, 0, 0}, {40, 0, 100}}) {
      harness.regroup(group_rows);
      ASSERT_TRUE(harness.clear().ok());
      ASSERT_TRUE(graph->launch().ok());
      ASSERT_TRUE(graph->synchronize().ok());
      EXPECT_EQ(harness.compare(harness.output()), "") << to_string(tuning);
    }
  }
}

// What offsets say beyond the tensors is not believed, and an expert that is not there has weights of zero.
TEST_P(GroupedMatmulTest, OffsetsBeyondTheRowsAndExpertsThatAreNotThereTouchNothingElse) {
  constexpr int kInner = 64, kColumns = 128, kRows = 20;
  for (const MatmulTuning& tuning : kMatmulTunings) {
    const auto matmul = must(GroupedMatmul::create(rank(), {.num_groups = 3,
                                                            .element = tuning.element,
                                                            .weights = tuning.weights,
                                                            .inner = kInner,
                                                            .columns = kColumns,
                                                            .max_rows = kRows,
                                                            .num_blocks = budget(tuning, 1),
                                                            .tuning = tuning}));
    const auto rows = must(rank().upload(Operand(tuning.element, kRows * kInner, 1).bytes));
    const auto weights = must(rank().upload(Operand(tuning.element, 3 * kColumns * kInner, 2).bytes));
    const auto offsets = must(rank().upload(std::vector<uint32_t>{0, 10, 300, 5}));
    const auto expert_ids = must(rank().upload(std::vector<int32_t>{-1, 7, 1}));
    const auto scales = must(rank().upload(random_scales(kRows, 3)));
    const bool is_fp8 = tuning.element == MatmulElement::kFP8;
    auto output = must(rank().allocate<bf16>((kRows + 300) * kColumns));
    ASSERT_TRUE(output.fill_bytes(kPoison & 0xff).ok());
    ASSERT_TRUE(matmul
                    ->run({.rows = rows.data(),
                           .weights = weights.data(),
                           .output = output.data(),
                           .row_offsets = offsets.data(),
                           .expert_ids = expert_ids.data(),
                           .row_scales = is_fp8 ? scales.data() : nullptr,
                           .weight_scales = is_fp8 || is_coded(tuning.weights) ? scales.data() : nullptr})
                    .ok());
    ASSERT_TRUE(rank().synchronize().ok());
    const std::vector<bf16> values = must(output.download());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i].bits & 0x7fff, i < kRows * kColumns ? 0 : kPoison & 0x7fff)
          << to_string(tuning) << ", output " << i;
  }
}

TEST_P(GroupedMatmulTest, ShapesItCannotMultiplyAreRefusedByName) {
  const GroupedMatmulShape good{.num_groups = 2, .inner = 64, .columns = 64, .max_rows = 10};
  const auto message_of = [&](auto change) {
    GroupedMatmulShape shape = good;
    change(shape);
    return GroupedMatmul::create(rank(), shape).status().message();
  };
  EXPECT_NE(message_of([](auto& s) { s.inner = 60; }).find("inner: 60"), std::string::npos);
  EXPECT_NE(message_of([](auto& s) {
              s.element = MatmulElement::kFP8;
              s.inner = 24;
            }).find("inner: 24 must be a positive multiple of 16"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& s) {
              s.tuning = MatmulTuning{64, 128, 128, 8, MatmulSharing::kNone, MatmulElement::kFP8};
            }).find("is not one of element bf16"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& s) {
              s.row_scales = MatmulRowScales::kPackedE8M0;
            }).find("row_scales: packed ones need element fp8, not bf16"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& s) { s.columns = 0; }).find("columns: 0"), std::string::npos);
  EXPECT_NE(message_of([](auto& s) { s.num_groups = 0; }).find("num_groups: 0"), std::string::npos);
  EXPECT_NE(message_of([](auto& s) { s.max_rows = -1; }).find("max_rows: -1"), std::string::npos);
  EXPECT_NE(message_of([](auto& s) { s.group_capacity = 6; }).find("group_capacity: 6"), std::string::npos);
  EXPECT_NE(message_of([](auto& s) {
              s.tuning = MatmulTuning{32, 8, 64, 1};
            }).find("32x8x64x1"),
            std::string::npos);
  const auto matmul = must(GroupedMatmul::create(rank(), good));
  EXPECT_NE(matmul->run({}).message().find("rows"), std::string::npos);
}

TEST_P(GroupedMatmulTest, ABudgetOfBlocksIsNeverExceeded) {
  for (const MatmulTuning& tuning : kMatmulTunings)
    for (const int num_blocks : {2, 3, 7}) {
      const auto matmul = must(GroupedMatmul::create(rank(), {.element = tuning.element,
                                                              .weights = tuning.weights,
                                                              .inner = 64,
                                                              .columns = 64,
                                                              .max_rows = 10,
                                                              .num_blocks = num_blocks,
                                                              .tuning = tuning}));
      EXPECT_LE(matmul->num_blocks(), static_cast<uint32_t>(num_blocks)) << to_string(tuning);
      EXPECT_GE(matmul->num_blocks() + 1, static_cast<uint32_t>(num_blocks)) << to_string(tuning);
    }
  EXPECT_EQ(compare(rank(), {.group_rows = {300}, .num_blocks = 1}), "");
}

TEST(MatmulSimulation, AnyInterleavingOnAWeakMemory) {
  for (uint64_t seed = 1; seed <= (testing_support::kFewRepeats ? 1u : 4u); ++seed) {
    const auto world =
        must(World::create({.target = TargetChoice::kHost,
                            .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true}}));
    for (const MatmulTuning& tuning :
         {MatmulTuning{64, 128, 64, 8}, MatmulTuning{128, 128, 64, 6},
          MatmulTuning{128, 128, 128, 6, MatmulSharing::kNone, MatmulElement::kFP8},
          MatmulTuning{128, 256, 128, 4, MatmulSharing::kNone, MatmulElement::kFP8},
          coded_tuning(WeightFormat::kNVFP4, 16)})
      EXPECT_EQ(
          compare(
              world->rank(0),
              {.group_rows = {3, 0, 66}, .inner = 144, .columns = 136, .num_blocks = 2, .tuning = tuning}),
          "")
          << to_string(tuning) << ", seed " << seed;
  }
}

}  // namespace
}  // namespace switchyard
