// Who writes the rows of a token that has several on a rank: its own rank, or the one that owns them.
// EpHarness checks rows, offsets, counts and outputs against the reference, which knows of no difference.
#include "step_test.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::must;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::StepMode;

using Variant = std::tuple<TargetChoice, StepMode>;

class DeliveryTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static RunOptions options() {
    const auto [target, mode] = GetParam();
    return {.target = target,
            .mode = mode,
            .protocol = Protocol::kDirect,
            .row_delivery = RowDelivery::kReceiver,
            .unwritten = UnwrittenRows::kMarked};
  }
  static void check(const Shape& shape, const RunOptions& run = options(), int num_steps = 2) {
    EpHarness harness(shape, run);
    for (int i = 0; i < num_steps && !HasFatalFailure(); ++i)
      harness.run_and_check(as_run(make_step(shape, 300 + static_cast<uint64_t>(i)), run));
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, DeliveryTest,
                         ::testing::Combine(testing_support::all_targets(),
                                            ::testing::Values(StepMode::kSplit, StepMode::kFused)),
                         [](const auto& info) {
                           return testing_support::target_name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == StepMode::kSplit ? "Split" : "Fused");
                         });

TEST_P(DeliveryTest, ARankFillsTheRowsOfATokenThatCameOnce) {
  check({.n_ranks = 3, .n_experts = 9, .top_k = 6, .tokens_per_rank = {9, 4, 1}});
}
TEST_P(DeliveryTest, OneRank) { check({.n_ranks = 1, .n_experts = 4, .top_k = 3, .tokens_per_rank = {7}}); }
TEST_P(DeliveryTest, RanksWithoutTokens) {
  check({.n_ranks = 3, .n_experts = 6, .top_k = 4, .tokens_per_rank = {0, 7, 0}});
  check({.tokens_per_rank = {0, 0}, .max_tokens_per_rank = 4});
}
// More ids than a block keeps numbers of in shared memory, and more rows than warps.
TEST_P(DeliveryTest, ManyTokens) {
  RunOptions run = options();
  run.n_sms = 1;
  check({.n_experts = 8, .top_k = 8, .hidden = 16, .tokens_per_rank = {140, 130}}, run, 1);
}
TEST_P(DeliveryTest, ManyChoices) {
  check({.n_ranks = 2, .n_experts = 40, .top_k = 32, .tokens_per_rank = {5, 3}}, options(), 1);
  check({.n_ranks = 2, .n_experts = 40, .top_k = 17, .tokens_per_rank = {5, 3}}, options(), 1);
}
TEST_P(DeliveryTest, PaddingRepeatedIdsAndARankWithoutRows) {
  const Shape shape{.n_experts = 4, .top_k = 3, .tokens_per_rank = {4, 3}};
  EpHarness harness(shape, options());
  reference::Step step = as_run(make_step(shape, 3), options());
  step.topk_ids = {{-1, 0, -1, -1, -1, -1, 3, -1, 2, 1, 1, 0}, {2, -1, 2, 0, 0, 1, -1, -1, -1}};
  harness.run_and_check(step);
  if (HasFatalFailure()) return;
  step.topk_ids = {{0, 1, 0, 1, 1, 1, 0, 0, -1, 1, 0, 0}, {1, 1, 0, 0, 1, 0, -1, 0, 1}};
  harness.run_and_check(step);
}
TEST_P(DeliveryTest, MaskedAndAlignedGroupsWithASharedExpert) {
  for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kMasked}) {
    RunOptions run = options();
    run.row_layout = layout;
    run.row_alignment = 5;
    run.shared_expert = SharedExpert::kFused;
    run.unwritten = UnwrittenRows::kZeroed;
    if (!HasFatalFailure()) check({.top_k = 4, .tokens_per_rank = {6, 3}}, run);
  }
}
TEST_P(DeliveryTest, EveryFormat) {
  for (const TokenFormatKind format : kTokenFormatKinds) {
    if (info_of(format).encodes_by_expert) continue;
    RunOptions run = options();
    run.format = format;
    if (!HasFatalFailure())
      check({.n_experts = 6, .top_k = 4, .hidden = 256, .tokens_per_rank = {5, 3}}, run, 1);
  }
}
// Scales of a row whose bytes are no multiple of 16.
TEST_P(DeliveryTest, HiddenSizesOfOddNumbersOfBytes) {
  for (const TokenFormatKind format : kTokenFormatKinds)
    for (const int hidden : {96, 160}) {
      if (info_of(format).encodes_by_expert || !check_hidden(format, hidden).ok()) continue;
      RunOptions run = options();
      run.format = format;
      if (!HasFatalFailure())
        check({.n_experts = 6, .top_k = 4, .hidden = hidden, .tokens_per_rank = {5, 3}}, run, 1);
    }
}
TEST_P(DeliveryTest, OverAWireInEveryFormat) {
  for (const TokenFormatKind format : kTokenFormatKinds) {
    if (info_of(format).encodes_by_expert) continue;
    for (const int group : {1, 2}) {
      RunOptions run = options();
      run.format = format;
      run.p2p_world_size = group;
      if (!HasFatalFailure())
        check({.n_ranks = 4, .n_experts = 8, .top_k = 5, .hidden = 256, .tokens_per_rank = {5, 3, 0, 4}}, run,
              1);
    }
  }
}
TEST_P(DeliveryTest, ReplicasAndARankWithoutExperts) {
  RunOptions run = options();
  run.placement = must(ExpertPlacement::from_lists(5, {{4, 0, 2}, {}, {3, 1, 4}}));
  check({.n_ranks = 3, .n_experts = 5, .top_k = 4, .tokens_per_rank = {5, 3, 2}}, run);
}
TEST_P(DeliveryTest, StepsBackToBack) {
  const Shape shape{.n_experts = 8, .top_k = 5, .tokens_per_rank = {6, 3}};
  for (const bool in_place : {false, true}) {
    RunOptions run = options();
    run.unwritten = UnwrittenRows::kLeft;
    run.experts_in_place = in_place;
    EpHarness harness(shape, run);
    EXPECT_EQ(harness.run_back_to_back({make_step(shape, 1), make_step(shape, 2), make_step(shape, 3)}), "");
  }
}
TEST_P(DeliveryTest, TheSenderGivesTheSame) {
  const Shape shape{.n_experts = 8, .top_k = 6, .tokens_per_rank = {9, 4}};
  RunOptions sender = options();
  sender.row_delivery = RowDelivery::kSender;
  const reference::Step step = as_run(make_step(shape, 7), sender);
  EpHarness by_sender(shape, sender), by_receiver(shape, options());
  by_sender.run_and_check(step);
  by_receiver.run_and_check(step);
  EXPECT_EQ(by_sender.last_output(), by_receiver.last_output());
}
TEST_P(DeliveryTest, ABadIdIsNamed) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape{.top_k = 3};
  EpHarness harness(shape, options());
  reference::Step step = make_step(shape, 1);
  step.topk_ids[1][0] = 99;
  Status status = harness.enqueue_steps(step, 2);
  if (status.ok()) status = harness.ep().synchronize();
  EXPECT_NE(status.message().find("topk_ids of rank 1 holds 99"), std::string::npos) << status.to_string();
  ASSERT_TRUE(harness.ep().reset().ok());
  harness.run_and_check(make_step(shape, 2));
}

Result<std::unique_ptr<ExpertParallel>> create(World& world, const ExpertParallelConfig& changes) {
  ExpertParallelConfig config = changes;
  config.n_experts = 4;
  config.top_k = 2;
  config.hidden = 128;
  config.max_tokens_per_rank = 8;
  return ExpertParallel::create(world, config);
}

TEST(Delivery, WhatItCannotDoIsRefused) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto error_of = [&](ExpertParallelConfig changes) {
    changes.row_delivery = RowDelivery::kReceiver;
    const auto ep = create(*world, changes);
    return ep.ok() ? "" : ep.status().message();
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(
      error_of({.protocol = Protocol::kSlotted}),
      "row_delivery is receiver; it must be sender or automatic where protocol is slotted: every row is "
      "a message");
  EXPECT_EQ(
      error_of({.dispatch_format = TokenFormatKind::kNVFP4ByExpert, .expert_input_scales = {1, 1, 1, 1}}),
      "row_delivery is receiver; it must be sender or automatic in format nvfp4-by-expert, which encodes a "
      "token for each expert");
}

TEST(Delivery, IsTheSendersBetweenRanksThatShareMemoryAndTheReceiversOverAWire) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto chosen = [&](const ExpertParallelConfig& changes) {
    return must(create(*world, changes))->config().row_delivery;
  };
  EXPECT_EQ(chosen({}), RowDelivery::kSender);
  EXPECT_EQ(chosen({.protocol = Protocol::kDirect, .p2p_world_size = 1}), RowDelivery::kReceiver);
  EXPECT_EQ(chosen({.protocol = Protocol::kSlotted, .p2p_world_size = 1}), RowDelivery::kSender);
  EXPECT_EQ(chosen({.row_layout = RowLayout::kPerRank, .row_delivery = RowDelivery::kReceiver}),
            RowDelivery::kSender)
      << "a token comes once anyway";
  EXPECT_EQ(chosen({.row_delivery = RowDelivery::kReceiver}), RowDelivery::kReceiver);
}

TEST(Delivery, RowsThatTheReceiverFillsAreNotThereEarly) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  auto ep = must(create(*world, {.row_delivery = RowDelivery::kReceiver}));
  EXPECT_EQ(ep->row_readiness(0, 1).status().message(),
            "row_readiness: row_delivery is receiver, so rows are complete behind dispatch_wait only");
}

}  // namespace
}  // namespace switchyard
