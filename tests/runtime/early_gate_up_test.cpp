// A layer whose gate_up starts with an expert when its rows are there: on every target that is here, and in
// weak memory, where each part of the wait that is left out must show.
#include <iostream>

#include "layer_harness.hpp"
#include "runtime/ep/ep_config.hpp"
#include "sweep.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {
namespace {

using testing_support::kFewCases;
using testing_support::LayerCase;
using testing_support::LayerHarness;
using testing_support::must;
using testing_support::seeds;
using testing_support::sweep;
using testing_support::WholeLayerTest;

constexpr LayerCase kEarly{
    .n_ranks = 2, .protocol = Protocol::kDirect, .gate_up_start = GateUpStart::kWithRows};

class EarlyGateUp : public WholeLayerTest {};

INSTANTIATE_TEST_SUITE_P(Targets, EarlyGateUp, ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda),
                         testing_support::layer_target_name);

constexpr TokenFormatKind kEarlyFormats[] = {TokenFormatKind::kBF16, TokenFormatKind::kFP8ByRow};

TEST_P(EarlyGateUp, AnyNumberOfRanksWithAndWithoutASharedExpert) {
  for (const int n_ranks : sweep({1, 2, 4}))
    for (const TokenFormatKind format : kEarlyFormats)
      for (const SharedExpert shared : {SharedExpert::kNone, SharedExpert::kFused}) {
        LayerCase layer_case = kEarly;
        layer_case.n_ranks = n_ranks;
        layer_case.format = format;
        layer_case.shared_expert = shared;
        layer_case.has_router = layer_case.has_bias = shared == SharedExpert::kFused;
        const auto world = make_world(n_ranks);
        LayerHarness harness(*world, layer_case);
        EXPECT_EQ(harness.outcome(), "") << layer_case.name();
      }
}

// What dispatch sends in fp8 by row has the codes and the scales of fp8.
TEST_P(EarlyGateUp, HasTheBitsOfALayerThatWaitsForAllRows) {
  const std::pair<TokenFormatKind, TokenFormatKind> formats[] = {
      {TokenFormatKind::kBF16, TokenFormatKind::kBF16}, {TokenFormatKind::kFP8ByRow, TokenFormatKind::kFP8}};
  for (const auto& [early_format, format] : formats) {
    std::vector<std::vector<bf16>> outputs;
    for (const GateUpStart start : {GateUpStart::kBehindDispatch, GateUpStart::kWithRows}) {
      LayerCase layer_case = kEarly;
      layer_case.format = start == GateUpStart::kWithRows ? early_format : format;
      layer_case.gate_up_start = start;
      const auto world = make_world(2);
      LayerHarness harness(*world, layer_case);
      ASSERT_EQ(harness.outcome(), "") << layer_case.name();
      for (const int rank : {0, 1}) outputs.push_back(harness.output(rank));
    }
    for (const size_t rank : {0, 1}) {
      ASSERT_EQ(outputs[rank].size(), outputs[2 + rank].size());
      for (size_t i = 0; i < outputs[rank].size(); ++i)
        ASSERT_EQ(outputs[rank][i].bits, outputs[2 + rank][i].bits)
            << to_string(early_format) << ", rank " << rank << ", element " << i;
    }
  }
}

// In fp8 a second step must not multiply by the scales of the first one.
TEST_P(EarlyGateUp, AGraphOfItReadsTokensAndIdsAnew) {
  for (const TokenFormatKind format : kEarlyFormats) {
    LayerCase layer_case = kEarly;
    layer_case.format = format;
    const auto world = make_world(2);
    LayerHarness harness(*world, layer_case);
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

TEST_P(EarlyGateUp, ARankWithoutTokensStillServesTheOthers) {
  const auto world = make_world(2);
  LayerHarness harness(*world, kEarly);
  ASSERT_TRUE(harness.layer().run(0, harness.step(0)).ok());
  ASSERT_TRUE(harness.layer().run(1, {}).ok());
  ASSERT_TRUE(harness.layer().ep().synchronize().ok());
  EXPECT_EQ(harness.compare(0), "");
}

// The matmul's queue is 0 again, although its rows did not come.
TEST_P(EarlyGateUp, AfterARankThatDoesNotComeAndAResetTheNextStepIsRight) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  LayerCase layer_case = kEarly;
  layer_case.timeout_ns = 300'000'000;
  const auto world = make_world(2);
  LayerHarness harness(*world, layer_case);
  ASSERT_EQ(harness.outcome(), "");
  ASSERT_TRUE(harness.layer().run(0, harness.step(0)).ok());
  const Status status = harness.layer().ep().synchronize();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
  ASSERT_TRUE(harness.layer().ep().reset().ok());
  EXPECT_EQ(harness.outcome(), "");
}

TEST_P(EarlyGateUp, WhatItCannotRunIsRefusedByName) {
  const auto world = make_world(1);
  LayerHarness harness(*world, {});
  const auto message_of = [&](auto change) {
    MoeLayerConfig config = harness.config();
    config.gate_up_start = GateUpStart::kWithRows;
    change(config);
    alignas(16) const float any = 0;
    return MoeLayer::create(*world, config, {ExpertWeights{&any, &any, &any, &any, nullptr, nullptr}})
        .status()
        .message();
  };
  const auto expect_named = [](const std::string& message, const char* name) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  expect_named(message_of([](auto& c) { c.ep.protocol = Protocol::kSlotted; }), "slotted");
  expect_named(message_of([](auto& c) {
                 c.ep.protocol = Protocol::kDirect;
                 c.ep.dispatch_format = TokenFormatKind::kFP8;
               }),
               "gate_up_start: with the rows; dispatch_format must be bf16 or fp8-by-row, not fp8");
}

TEST_P(EarlyGateUp, BlocksThatLeaveDispatchNoRoomAreRefused) {
  if (GetParam() == TargetChoice::kHost) GTEST_SKIP() << "an emulated device has room for any blocks";
  const auto world = make_world(2);
  LayerHarness harness(*world, kEarly);
  const int most = harness.layer().ep().max_early_blocks(0);
  EXPECT_GE(most, 1);
  EXPECT_LE(most, device_of(world->rank(0)).num_multiprocessors() / 2);
  EXPECT_TRUE(harness.layer().ep().row_readiness(0, most).ok());
  EXPECT_FALSE(harness.layer().ep().row_readiness(0, most + 1).ok());
}

// dispatch_wait writes them, behind the matmul.
TEST_P(EarlyGateUp, CountsThatAreNotThereYetAreRefused) {
  const auto world = make_world(1);
  LayerCase layer_case = kEarly;
  layer_case.n_ranks = 1;
  LayerHarness harness(*world, layer_case);
  const RowReadiness readiness = must(harness.layer().ep().row_readiness(0, 1));
  const auto memory = must(world->rank(0).allocate<uint32_t>(1024));
  auto matmul = must(GroupedMatmul::create(world->rank(0), {.num_groups = readiness.n_local_experts,
                                                            .inner = 64,
                                                            .columns = 128,
                                                            .activation = Activation::kSiLU,
                                                            .max_rows = 64}));
  const Status status = matmul->run({.rows = memory.data(),
                                     .weights = memory.data(),
                                     .output = memory.data(),
                                     .row_offsets = memory.data(),
                                     .row_counts = memory.data(),
                                     .readiness = &readiness});
  EXPECT_NE(status.message().find("readiness: must be null with row_counts"), std::string::npos)
      << status.message();
}

TEST(EarlyBlocks, LeaveRoomForEveryDispatchThatMayBeBesideThem) {
  ExpertParallelConfig config{.n_sms = 4, .steps_in_flight = 1};
  EXPECT_EQ(early_block_limit(config, 16), 16);
  EXPECT_EQ(early_block_limit(config, 4), 4);
  EXPECT_EQ(early_block_limit(config, 3), 0);
  config.dependent_launch = true;
  EXPECT_EQ(early_block_limit(config, 16), 12);
  EXPECT_EQ(early_block_limit(config, 7), 0);
  // Two flights have such a kernel each.
  config.steps_in_flight = 2;
  EXPECT_EQ(early_block_limit(config, 16), 4);
  config.dependent_launch = false;
  EXPECT_EQ(early_block_limit(config, 16), 8);
}

std::string run_weak(TokenFormatKind format, uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const auto world = must(World::create(
      {.target = TargetChoice::kHost, .n_ranks = 2, .host = testing_support::weak_memory(seed, &hooks)}));
  LayerCase layer_case = kEarly;
  layer_case.format = format;
  layer_case.hidden = format == TokenFormatKind::kBF16 ? 64 : kMatmulScaleGroup;
  layer_case.width = 64;
  LayerHarness harness(*world, layer_case);
  return harness.outcome();
}

class EarlyGateUpInWeakMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kFewCases) GTEST_SKIP() << "a sanitizer's build has no weak memory";
  }
};

TEST_F(EarlyGateUpInWeakMemory, IsRightForEverySeed) {
  for (const TokenFormatKind format : kEarlyFormats)
    for (uint64_t seed = 0; seed < seeds(6); ++seed)
      ASSERT_EQ(run_weak(format, seed, std::nullopt), "") << to_string(format) << ", seed " << seed;
}

// What would not be noticed on the emulator's usual memory.
TEST_F(EarlyGateUpInWeakMemory, EveryPartOfTheWaitThatIsLeftOutShows) {
  const std::pair<const char*, OrderMutant> mutants[] = {
      {"the acquire of the rows", {"wait_for_rows_of_rank(", WordKind::kLoad, Order::kRelaxed}},
      {"their release", {"DirectDispatchAsync*::finish(", WordKind::kStore, Order::kRelaxed}},
      {"the fence for the copy engine", {"MatmulProducer*::run(", WordKind::kProxyFence}}};
  constexpr uint64_t kMaxSeeds = 40;
  for (const TokenFormatKind format : kEarlyFormats)
    for (auto [name, mutant] : mutants) {
      mutant.stops_at_overtaking = false;
      std::string difference;
      uint64_t seed = 0;
      for (; seed < kMaxSeeds && difference.empty(); ++seed) difference = run_weak(format, seed, mutant);
      EXPECT_NE(difference, "") << to_string(format) << ", " << name << ": none of " << kMaxSeeds
                                << " seeds shows it";
      std::cout << to_string(format) << ", " << name << ", seed " << seed - 1 << ": " << difference << "\n";
    }
}

}  // namespace
}  // namespace switchyard
