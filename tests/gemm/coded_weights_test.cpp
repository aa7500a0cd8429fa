// Grouped matmuls whose weights are codes with block scales: what the other tests of the matmul, which run
// with every tuning, do not ask. That is how exactly weights are decoded, and what is refused.
#include <gtest/gtest.h>

#include <random>

#include "layer_kernels_fixture.hpp"
#include "reference/matmul.hpp"
#include "switchyard/grouped_matmul.hpp"

namespace switchyard {
namespace {

constexpr WeightFormat kCodedFormats[] = {WeightFormat::kMXFP4, WeightFormat::kNVFP4, WeightFormat::kMXFP8};

class CodedWeightsTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world_ = testing_support::must(World::create({.target = GetParam()}));
  }
  Rank& rank() { return world_->rank(0); }
  std::string refusal_of(const GroupedMatmulShape& shape) {
    return GroupedMatmul::create(rank(), shape).status().message();
  }

 private:
  std::unique_ptr<World> world_;
};

INSTANTIATE_TEST_SUITE_P(Targets, CodedWeightsTest,
                         ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda), [](const auto& info) {
                           return info.param == TargetChoice::kHost ? "Host" : "Cuda";
                         });

// Row k has a 1 at element k and zeros elsewhere: an output is a weight, and no sum rounds it.
TEST_P(CodedWeightsTest, EveryCodeTimesEveryScaleInRangeIsExact) {
  constexpr size_t kInner = 512, kColumns = 24;
  std::vector<bf16> rows(kInner * kInner);
  for (size_t k = 0; k < kInner; ++k) rows[k * kInner + k] = to_bf16(1);
  const auto rows_memory = testing_support::must(rank().upload(rows));
  const auto offsets = testing_support::must(rank().upload(std::vector<uint32_t>{0, kInner}));
  for (const WeightFormat format : kCodedFormats)
    for (const int tile_rows : {16, 64, 128})
      for (const float tensor_scale : {1.0f, 0x1p-20f}) {
        std::mt19937_64 random(static_cast<uint64_t>(tile_rows));
        std::vector<uint8_t> codes(kColumns * kInner * static_cast<size_t>(code_bits_of(format)) / 8);
        for (uint8_t& byte : codes) do
            byte = static_cast<uint8_t>(random());
          while (format == WeightFormat::kMXFP8 && (byte & 0x7f) == 0x7f);  // a NaN
        std::vector<uint8_t> scales(kColumns * kInner / static_cast<size_t>(scale_group_size(format)));
        for (uint8_t& scale : scales)  // every number of e4m3, and e8m0 from 2^-80 to 2^32
          scale =
              static_cast<uint8_t>(format == WeightFormat::kNVFP4 ? random() % 0x7f : 47 + random() % 113);
        const std::vector<float> values = reference::decode_weights(format, codes, scales, tensor_scale);

        const auto matmul =
            testing_support::must(GroupedMatmul::create(rank(), {.weights = format,
                                                                 .inner = kInner,
                                                                 .columns = kColumns,
                                                                 .max_rows = kInner,
                                                                 .num_blocks = 2,
                                                                 .tuning = coded_tuning(format, tile_rows)}));
        const auto codes_memory = testing_support::must(rank().upload(codes));
        const auto scales_memory = testing_support::must(rank().upload(scales));
        const auto tensor_scales = testing_support::must(rank().upload(std::vector<float>{tensor_scale}));
        const auto output = testing_support::must(rank().allocate<bf16>(kInner * kColumns));
        const Status status =
            matmul->run({.rows = rows_memory.data(),
                         .weights = codes_memory.data(),
                         .output = const_cast<bf16*>(output.data()),
                         .row_offsets = offsets.data(),
                         .weight_scales = scales_memory.data(),
                         .weight_tensor_scales = tensor_scale == 1.0f ? nullptr : tensor_scales.data()});
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_TRUE(rank().synchronize().ok());
        const std::vector<bf16> outputs = testing_support::must(output.download());
        for (size_t k = 0; k < kInner; ++k)
          for (size_t column = 0; column < kColumns; ++column)
            ASSERT_EQ(to_float(outputs[k * kColumns + column]), values[column * kInner + k])
                << to_string(format) << ", tiles of " << tile_rows << " rows, column " << column
                << ", element " << k;
      }
}

TEST_P(CodedWeightsTest, ShapesThatDoNotFitTheScaleGroupsAreRefusedByName) {
  const GroupedMatmulShape good{.weights = WeightFormat::kMXFP4, .inner = 128, .columns = 64, .max_rows = 10};
  EXPECT_EQ(refusal_of(good), "");
  GroupedMatmulShape shape = good;
  shape.inner = 96;
  EXPECT_NE(refusal_of(shape).find("inner: 96 must be a positive multiple of 64 with weights mxfp4"),
            std::string::npos);
  shape.weights = WeightFormat::kMXFP8;
  EXPECT_EQ(refusal_of(shape), "");
  shape.inner = 48;
  EXPECT_NE(refusal_of(shape).find("inner: 48 must be a positive multiple of 32 with weights mxfp8"),
            std::string::npos);
  shape = good;
  shape.columns = 12;
  EXPECT_NE(refusal_of(shape).find("columns: 12"), std::string::npos);
  shape = good;
  shape.element = MatmulElement::kFP8;
  EXPECT_NE(refusal_of(shape).find("weights: mxfp4 needs element bf16, not fp8"), std::string::npos);
  shape = good;
  shape.tuning = MatmulTuning{};
  EXPECT_NE(refusal_of(shape).find("tuning: 64x128x64x8 is not one of weights mxfp4"), std::string::npos);
  shape = good;
  shape.weights = WeightFormat::kAsRows;
  shape.tuning = coded_tuning(WeightFormat::kNVFP4, 16);
  EXPECT_NE(refusal_of(shape).find("tuning: 16x256x256x5 nvfp4 is not one of weights as-rows"),
            std::string::npos);
}

TEST_P(CodedWeightsTest, ScalesAreNeededAndRowsMustBeThere) {
  const auto matmul = testing_support::must(GroupedMatmul::create(rank(), {.weights = WeightFormat::kNVFP4,
                                                                           .inner = 64,
                                                                           .columns = 64,
                                                                           .activation = Activation::kSiLU,
                                                                           .max_rows = 10}));
  const auto memory = testing_support::must(rank().allocate<float>(4096));
  GroupedMatmulTensors tensors{.rows = memory.data(),
                               .weights = memory.data(),
                               .output = const_cast<float*>(memory.data()),
                               .row_offsets = reinterpret_cast<const uint32_t*>(memory.data())};
  EXPECT_NE(matmul->run(tensors).message().find("weight_scales: must not be null"), std::string::npos);
  tensors.weight_scales = reinterpret_cast<const char*>(memory.data()) + 2;
  EXPECT_NE(matmul->run(tensors).message().find("must be aligned to 4 bytes"), std::string::npos);
  tensors.weight_scales = memory.data();
  tensors.row_scales = memory.data();
  EXPECT_NE(matmul->run(tensors).message().find(
                "row_scales: must be null with element bf16, row_format bf16 and weights nvfp4"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard
