// Inputs as engines have them: 64-bit ids, rows with gaps between them, tokens that are encoded already, an
// input scale in device memory.
#include "ep_harness.hpp"
#include "switchyard/detail/sync/wait_context.hpp"

namespace switchyard {
namespace {

using namespace testing_support;
using reference::TensorStyle;

constexpr TensorStyle kStyles[] = {
    {.has_wide_ids = true}, {.gap_bytes = 16}, {.has_wide_ids = true, .gap_bytes = 48}};

class EngineTensors : public testing::TestWithParam<std::tuple<TargetChoice, Protocol>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  RunOptions options(const TensorStyle& style, TokenFormatKind format = TokenFormatKind::kBF16) const {
    return {.target = std::get<0>(GetParam()),
            .protocol = std::get<1>(GetParam()),
            .format = format,
            .style = style};
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, EngineTensors, testing::Combine(all_targets(), both_protocols()),
                         [](const auto& info) {
                           return target_name(std::get<0>(info.param)) +
                                  protocol_name(std::get<1>(info.param));
                         });

// Codes and scales that no encoding of ours would make.
void draw_codes(reference::Step& step, uint64_t seed) {
  std::mt19937_64 random(seed);
  const ScaleType scale = info_of(step.format).scale;
  for (auto& codes : step.token_codes)
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 0x70 | (random() & 0x80));
  for (auto& scales : step.token_scales)
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] =
          static_cast<uint8_t>(scale == ScaleType::kE4M3 ? random() % 0x40 + 0x20 : random() % 12 + 120);
      if (scale == ScaleType::kFloat && i % 4 == 3) scales[i] = 0x3f;
    }
}

TEST_P(EngineTensors, GiveTheSameRowsAndOutputs) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 3, .tokens_per_rank = {5, 0, 4}};
  for (const TensorStyle& style : kStyles) {
    EpHarness harness(shape, options(style));
    for (uint64_t seed = 0; seed < 2; ++seed)
      EXPECT_EQ(harness.run_and_compare(make_step(shape, seed)), "") << style.describe();
  }
}

TEST_P(EngineTensors, MayAlternateBetweenSteps) {
  const Shape shape;
  EpHarness harness(shape, options(kStyles[2]));
  EXPECT_EQ(harness.run_back_to_back({make_step(shape, 1), make_step(shape, 2), make_step(shape, 3)}), "");
}

TEST_P(EngineTensors, LeaveGapsBetweenUnreducedRows) {
  RunOptions unreduced = options(kStyles[2]);
  unreduced.reduction = CombineReduction::kUnreduced;
  EpHarness harness({}, unreduced);
  EXPECT_EQ(harness.run_and_compare(make_step({}, 3)), "");
}

TEST_P(EngineTensors, SendEncodedTokensAsTheyAre) {
  for (const TokenFormatKind kind : kTokenFormatKinds) {
    const TokenFormatInfo format = info_of(kind);
    if (format.scale == ScaleType::kNone || format.encodes_by_expert) continue;
    const Shape shape{.hidden = 2 * format.hidden_multiple()};
    for (const int gap_bytes : {0, 16}) {
      RunOptions encoded = options({.is_encoded = true, .gap_bytes = gap_bytes}, kind);
      encoded.shared_expert = gap_bytes == 0 ? SharedExpert::kNone : SharedExpert::kFused;
      EpHarness harness(shape, encoded);
      reference::Step step = as_run(make_step(shape, 7), encoded);
      draw_codes(step, 8);
      EXPECT_EQ(harness.run_and_compare(step), "") << format.name;
    }
  }
}

TEST_P(EngineTensors, SendEncodedTokensOverAWire) {
  for (const TokenFormatKind kind : {TokenFormatKind::kFP8, TokenFormatKind::kMXFP8}) {
    const Shape shape{.hidden = info_of(kind).hidden_multiple()};
    RunOptions encoded = options({.has_wide_ids = true, .is_encoded = true, .gap_bytes = 16}, kind);
    encoded.p2p_world_size = 1;
    EpHarness harness(shape, encoded);
    reference::Step step = as_run(make_step(shape, 9), encoded);
    draw_codes(step, 10);
    EXPECT_EQ(harness.run_and_compare(step), "") << info_of(kind).name;
  }
}

TEST_P(EngineTensors, MayHaveTheInputScaleOnTheDevice) {
  const RunOptions scaled = options({.has_device_scale = true}, TokenFormatKind::kNVFP4);
  EpHarness harness({}, scaled);
  EXPECT_EQ(harness.run_and_compare(as_run(make_step({}, 5), scaled)), "");
}

// 2^32 is 0 in 32 bits.
TEST_P(EngineTensors, WideIdsDoNotWrapAround) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape{.n_ranks = 1, .tokens_per_rank = {2}};
  EpHarness harness(shape, options({}));
  Rank& rank = harness.world().rank(0);
  const Buffer<bf16> tokens = must(rank.upload(std::vector<bf16>(2 * 64)));
  const Buffer<int64_t> ids = must(rank.upload(std::vector<int64_t>{0, 1, int64_t{1} << 32, 2}));
  ASSERT_TRUE(harness.ep()
                  .dispatch_async(0, {.tokens = tokens.data(), .num_tokens = 2, .topk_ids_64 = ids.data()})
                  .ok());
  const Status status = harness.ep().synchronize();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("topk_ids of rank 0 holds 2147483647"), std::string::npos)
      << status.to_string();
}

class RefusedTensors : public testing::Test {
 protected:
  // Says what is wrong with the input, and that the right one may follow.
  std::string refusal(const DispatchInput& input, TokenFormatKind format = TokenFormatKind::kBF16) {
    const Shape shape{.hidden = 128};
    EpHarness harness(shape, {.format = format});
    const Status status = harness.ep().dispatch_async(0, input);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(harness.run_and_compare(as_run(make_step(shape, 1), {.format = format})), "");
    return status.message();
  }
  alignas(16) std::byte memory_[64] = {};
  const int32_t* ids_ = reinterpret_cast<const int32_t*>(memory_);
  const int64_t* wide_ids_ = reinterpret_cast<const int64_t*>(memory_);
};

TEST_F(RefusedTensors, SayWhatIsTaken) {
  EXPECT_EQ(
      refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .format = InputFormat::kFP16}),
      "dispatch_async: tokens are fp16; dispatch takes bf16, or tokens encoded in dispatch_format (bf16)");
  EXPECT_EQ(refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .topk_ids_64 = wide_ids_}),
            "dispatch_async: topk_ids and topk_ids_64 are given; one of them must be null");
  EXPECT_EQ(
      refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .token_stride_bytes = 128}),
      "dispatch_async: token_stride_bytes is 128; it must be 0, or 256..2147483647 and a multiple of 16");
  EXPECT_EQ(
      refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .token_stride_bytes = 264}),
      "dispatch_async: token_stride_bytes is 264; it must be 0, or 256..2147483647 and a multiple of 16");
  EXPECT_EQ(refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .scales = memory_}),
            "dispatch_async: scales must be null unless tokens are encoded");
  EXPECT_EQ(
      refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .format = InputFormat::kEncoded}),
      "dispatch_async: tokens are encoded; dispatch_format is bf16, and must be one of the library's that "
      "has scales and encodes a token once for all experts");
  EXPECT_EQ(refusal({.tokens = memory_,
                     .topk_ids = ids_,
                     .num_tokens = 1,
                     .input_scale = reinterpret_cast<const float*>(memory_)},
                    TokenFormatKind::kFP8),
            "dispatch_async: input_scale must be null: dispatch_format is fp8, not nvfp4");
}

TEST_F(RefusedTensors, NameScalesAndTheirStride) {
  EXPECT_EQ(refusal({.tokens = memory_, .topk_ids = ids_, .num_tokens = 1, .format = InputFormat::kEncoded},
                    TokenFormatKind::kFP8),
            "dispatch_async: scales is null");
  EXPECT_EQ(refusal({.tokens = memory_,
                     .topk_ids = ids_,
                     .num_tokens = 1,
                     .format = InputFormat::kEncoded,
                     .scales = memory_,
                     .scales_stride_bytes = 6},
                    TokenFormatKind::kFP8),
            "dispatch_async: scales_stride_bytes is 6; it must be 0, or 4..2147483647 and a multiple of 4");
}

TEST_F(RefusedTensors, NameTheStrideOfAnOutput) {
  const Shape shape;
  EpHarness harness(shape, {});
  ASSERT_TRUE(harness.enqueue_dispatch(make_step(shape, 1)).ok());
  const Status status = harness.ep().combine(
      0, {nullptr, nullptr}, {.num_tokens = 5, .destination = {.output = nullptr, .output_stride_bytes = 8}});
  EXPECT_EQ(status.message(), "combine: topk_ids is null");
  const Status stride = harness.ep().combine(
      0, {nullptr, nullptr},
      {.topk_ids = ids_, .num_tokens = 5, .destination = {.output = nullptr, .output_stride_bytes = 8}});
  EXPECT_EQ(stride.message(),
            "combine: output_stride_bytes is 8; it must be 0, or 128..2147483647 and a multiple of 16");
}

}  // namespace
}  // namespace switchyard
