// A whole layer on every target that is here, against plain loops.
#include "switchyard/moe_layer.hpp"

#include <gtest/gtest.h>

#include "layer_harness.hpp"
#include "sweep.hpp"

namespace switchyard {
namespace {

using testing_support::kLayerMaxTokens;
using testing_support::LayerCase;
using testing_support::LayerHarness;
using testing_support::must;
using testing_support::sweep;

class MoeLayerTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(GetParam()); }
  std::unique_ptr<World> make_world(int n_ranks) {
    return must(World::create({.target = GetParam(), .n_ranks = n_ranks}));
  }
  void expect_right(const LayerCase& layer_case) {
    const auto world = make_world(layer_case.n_ranks);
    LayerHarness harness(*world, layer_case);
    ASSERT_TRUE(harness.enqueue().ok()) << layer_case.name();
    const Status status = harness.layer().ep().synchronize();
    ASSERT_TRUE(status.ok()) << layer_case.name() << ": " << status.to_string();
    EXPECT_EQ(harness.compare(), "") << layer_case.name();
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, MoeLayerTest, ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda),
                         [](const auto& info) {
                           return info.param == TargetChoice::kHost ? "Host" : "Cuda";
                         });

constexpr Protocol kProtocols[] = {Protocol::kSlotted, Protocol::kDirect};
constexpr TokenFormatKind kFormats[] = {TokenFormatKind::kBF16, TokenFormatKind::kFP8,
                                        TokenFormatKind::kFP8UE8M0};

TEST_P(MoeLayerTest, AnyNumberOfRanksInBothProtocolsAndAllFormats) {
  for (const int n_ranks : sweep({1, 2, 4}))
    for (const Protocol protocol : kProtocols)
      for (const TokenFormatKind format : kFormats)
        expect_right({.n_ranks = n_ranks, .protocol = protocol, .format = format});
}

TEST_P(MoeLayerTest, SharedExpertRouterAndBiases) {
  for (const Protocol protocol : kProtocols)
    for (const TokenFormatKind format : kFormats) {
      expect_right({.n_ranks = 2,
                    .protocol = protocol,
                    .format = format,
                    .shared_expert = SharedExpert::kFused,
                    .has_router = true});
      expect_right({.n_ranks = 2,
                    .protocol = protocol,
                    .format = format,
                    .activation = Activation::kClampedSwiGLU,
                    .gate_layout = GateLayout::kInterleaved,
                    .has_bias = true,
                    .width = 128});
    }
}

TEST_P(MoeLayerTest, WeightsThatAreCodes) {
  for (const WeightFormat weights : {WeightFormat::kMXFP4, WeightFormat::kNVFP4, WeightFormat::kMXFP8})
    expect_right({.n_ranks = 2,
                  .protocol = Protocol::kDirect,
                  .weights = weights,
                  .shared_expert = SharedExpert::kFused,
                  .has_bias = true});
}

TEST_P(MoeLayerTest, CombineInFP8AndWithoutAnAllToAll) {
  expect_right({.n_ranks = 2, .format = TokenFormatKind::kFP8, .combine_format = CombineFormat::kFP8});
  for (const TokenFormatKind format : kFormats)
    expect_right({.n_ranks = 2, .format = format, .routing = Routing::kSkipAllToAll});
}

TEST_P(MoeLayerTest, AGraphOfItReadsTokensAndIdsAnew) {
  for (const TokenFormatKind format : kFormats) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2,
                                  .protocol = Protocol::kDirect,
                                  .format = format,
                                  .shared_expert = SharedExpert::kFused,
                                  .has_router = true});
    const auto graph = must(world->capture([&] { return harness.enqueue(); }));
    for (const uint64_t seed : {2, 3, 2}) {
      harness.fill(seed);
      ASSERT_TRUE(graph->launch().ok());
      ASSERT_TRUE(graph->synchronize().ok());
      ASSERT_TRUE(harness.layer().ep().synchronize().ok());
      EXPECT_EQ(harness.compare(), "") << to_string(format) << ", seed " << seed;
    }
  }
}

TEST_P(MoeLayerTest, ARankWithoutTokensStillServesTheOthers) {
  for (const Protocol protocol : kProtocols) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2, .protocol = protocol});
    ASSERT_TRUE(harness.layer().run(0, harness.step(0)).ok());
    ASSERT_TRUE(harness.layer().run(1, {}).ok());
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    EXPECT_EQ(harness.compare(0), "") << to_string(protocol);
  }
}

TEST_P(MoeLayerTest, PartsInTheirOrderAreTheWholeStep) {
  const auto world = make_world(2);
  LayerHarness harness(*world, {.n_ranks = 2, .protocol = Protocol::kDirect, .has_router = true});
  for (const MoePart part : kMoeParts)
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_TRUE(harness.layer().run_part(part, rank, harness.step(rank)).ok()) << to_string(part);
  ASSERT_TRUE(harness.layer().ep().synchronize().ok());
  EXPECT_EQ(harness.compare(), "");
}

TEST_P(MoeLayerTest, WhatItCannotRunIsRefusedByName) {
  const auto world = make_world(1);
  LayerHarness harness(*world, {});
  const auto message_of = [&](auto change) {
    MoeLayerConfig config = harness.config();
    change(config);
    return MoeLayer::create(*world, config, {ExpertWeights{}}).status().message();
  };
  const auto expect_named = [](const std::string& message, const char* name) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  expect_named(message_of([](auto&) {}), "gate_up of rank 0");
  expect_named(message_of([](auto& c) { c.expert_width = 12; }), "expert_width: 12");
  expect_named(message_of([](auto& c) {
                 c.expert_width = 40;
                 c.ep.dispatch_format = TokenFormatKind::kFP8;
               }),
               "expert_width: 40 must be a positive multiple of 64");
  expect_named(message_of([](auto& c) { c.ep.dispatch_format = TokenFormatKind::kNVFP4; }),
               "dispatch_format");
  expect_named(message_of([](auto& c) { c.activation = Activation::kNone; }), "activation");
  expect_named(message_of([](auto& c) { c.weights = WeightFormat::kMXFP8; }), "gate_up of rank 0");
  expect_named(message_of([](auto& c) {
                 c.weights = WeightFormat::kMXFP8;
                 c.ep.dispatch_format = TokenFormatKind::kFP8;
               }),
               "weights: mxfp8 needs dispatch_format bf16, not fp8");
  expect_named(message_of([](auto& c) {
                 c.weights = WeightFormat::kNVFP4;
                 c.ep.hidden = 32;
               }),
               "hidden: 32 must be a multiple of 64 with weights nvfp4");
  expect_named(message_of([](auto& c) {
                 c.weights = WeightFormat::kMXFP4;
                 c.expert_width = 32;
               }),
               "expert_width: 32 must be a positive multiple of 64");
  MoeLayerStep step = harness.step(0);
  step.num_tokens = kLayerMaxTokens + 1;
  expect_named(harness.layer().run(0, step).message(), "num_tokens: 22 must be 0..21");
  step = harness.step(0);
  step.topk_weights = nullptr;
  expect_named(harness.layer().run(0, step).message(), "topk_weights");
  expect_named(harness.layer().run(1, step).message(), "rank: 1");
}

}  // namespace
}  // namespace switchyard
