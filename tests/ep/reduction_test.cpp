// Sums that the owner of a token's experts makes, so that one row per (token, rank) goes back: against a
// reference that rounds likewise.
#include "step_test.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::must;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::StepMode;

using Variant = std::tuple<TargetChoice, StepMode, RowDelivery>;

class ReductionTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static RunOptions options() {
    const auto [target, mode, delivery] = GetParam();
    return {.target = target,
            .mode = mode,
            .protocol = Protocol::kDirect,
            .row_delivery = delivery,
            .reduce_at_owner = true};
  }
  static void check(const Shape& shape, const RunOptions& run = options(), int num_steps = 2) {
    EpHarness harness(shape, run);
    for (int i = 0; i < num_steps && !HasFatalFailure(); ++i)
      harness.run_and_check(as_run(make_step(shape, 400 + static_cast<uint64_t>(i)), run));
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, ReductionTest,
                         ::testing::Combine(testing_support::all_targets(),
                                            ::testing::Values(StepMode::kSplit, StepMode::kFused),
                                            ::testing::Values(RowDelivery::kSender, RowDelivery::kReceiver)),
                         [](const auto& info) {
                           return testing_support::target_name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == StepMode::kSplit ? "Split" : "Fused") +
                                  (std::get<2>(info.param) == RowDelivery::kSender ? "Sender" : "Receiver");
                         });

TEST_P(ReductionTest, OneRowOfATokenComesFromEachRank) {
  check({.n_ranks = 3, .n_experts = 9, .top_k = 6, .tokens_per_rank = {9, 4, 1}});
}
TEST_P(ReductionTest, OneRank) { check({.n_ranks = 1, .n_experts = 4, .top_k = 3, .tokens_per_rank = {7}}); }
TEST_P(ReductionTest, RanksWithoutTokens) {
  check({.n_ranks = 3, .n_experts = 6, .top_k = 4, .tokens_per_rank = {0, 7, 0}});
  check({.tokens_per_rank = {0, 0}, .max_tokens_per_rank = 4});
}
TEST_P(ReductionTest, ManyTokensAndManyChoices) {
  RunOptions run = options();
  run.n_sms = 1;
  check({.n_experts = 8, .top_k = 8, .hidden = 16, .tokens_per_rank = {140, 130}}, run, 1);
  check({.n_ranks = 2, .n_experts = 40, .top_k = 32, .tokens_per_rank = {5, 3}}, options(), 1);
}
TEST_P(ReductionTest, PaddingRepeatedIdsAndARankWithoutRows) {
  const Shape shape{.n_experts = 4, .top_k = 3, .tokens_per_rank = {4, 3}};
  EpHarness harness(shape, options());
  reference::Step step = as_run(make_step(shape, 3), options());
  step.topk_ids = {{-1, 0, -1, -1, -1, -1, 3, -1, 2, 1, 1, 0}, {2, -1, 2, 0, 0, 1, -1, -1, -1}};
  harness.run_and_check(step);
  if (HasFatalFailure()) return;
  step.topk_ids = {{0, 1, 0, 1, 1, 1, 0, 0, -1, 1, 0, 0}, {1, 1, 0, 0, 1, 0, -1, 0, 1}};
  harness.run_and_check(step);
}
TEST_P(ReductionTest, MaskedAndAlignedGroupsWithASharedExpert) {
  for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kMasked}) {
    RunOptions run = options();
    run.row_layout = layout;
    run.row_alignment = 5;
    run.shared_expert = SharedExpert::kFused;
    if (!HasFatalFailure()) check({.top_k = 4, .tokens_per_rank = {6, 3}}, run);
  }
}
TEST_P(ReductionTest, EveryFormatNearAndFar) {
  for (const TokenFormatKind format : kTokenFormatKinds) {
    RunOptions run = options();
    if (info_of(format).encodes_by_expert && run.row_delivery == RowDelivery::kReceiver) continue;
    run.format = format;
    run.p2p_world_size = format == TokenFormatKind::kBF16 || format == TokenFormatKind::kFP8 ? 1 : 0;
    if (!HasFatalFailure())
      check({.n_experts = 6, .top_k = 4, .hidden = 256, .tokens_per_rank = {5, 3}}, run, 1);
  }
}
TEST_P(ReductionTest, GroupsOfTwo) {
  RunOptions run = options();
  run.p2p_world_size = 2;
  check({.n_ranks = 4, .n_experts = 8, .top_k = 5, .tokens_per_rank = {5, 3, 0, 4}}, run);
}
TEST_P(ReductionTest, ReplicasAndARankWithoutExperts) {
  RunOptions run = options();
  run.placement = must(ExpertPlacement::from_lists(5, {{4, 0, 2}, {}, {3, 1, 4}}));
  check({.n_ranks = 3, .n_experts = 5, .top_k = 4, .tokens_per_rank = {5, 3, 2}}, run);
}
TEST_P(ReductionTest, StepsBackToBack) {
  const Shape shape{.n_experts = 8, .top_k = 5, .tokens_per_rank = {6, 3}};
  for (const bool in_place : {false, true}) {
    RunOptions run = options();
    run.experts_in_place = in_place;
    EpHarness harness(shape, run);
    EXPECT_EQ(harness.run_back_to_back({as_run(make_step(shape, 1), run), as_run(make_step(shape, 2), run),
                                        as_run(make_step(shape, 3), run)}),
              "");
  }
}

// A token whose rows are on ranks of their own is summed up as ever.
TEST_P(ReductionTest, ChangesNothingWhereARankHasOneRow) {
  const Shape shape{.n_ranks = 3, .n_experts = 3, .top_k = 3, .tokens_per_rank = {4, 4, 4}};
  RunOptions plain = options();
  plain.reduce_at_owner = false;
  reference::Step step = as_run(make_step(shape, 7), plain);
  for (auto& ids : step.topk_ids)
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i + i / 3) % 3);
  EpHarness as_ever(shape, plain), reduced(shape, options());
  as_ever.run_and_check(step);
  step.reduces_at_owner = true;
  reduced.run_and_check(step);
  EXPECT_EQ(as_ever.last_output(), reduced.last_output());
}

TEST(Reduction, WhatItCannotDoIsRefused) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto create = [&](ExpertParallelConfig config) {
    config.n_experts = 4;
    config.top_k = 2;
    config.hidden = 128;
    config.max_tokens_per_rank = 8;
    config.reduce_at_owner = true;
    return ExpertParallel::create(*world, config);
  };
  const auto error_of = [&](const ExpertParallelConfig& config) {
    const auto ep = create(config);
    return ep.ok() ? "" : ep.status().message();
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({.protocol = Protocol::kSlotted}),
            "reduce_at_owner must be false where protocol is slotted: it needs the direct one");
  EXPECT_EQ(error_of({.row_layout = RowLayout::kPerRank}),
            "reduce_at_owner must be false where row_layout is per-rank: the caller sums up there");
  EXPECT_EQ(error_of({.combine_format = CombineFormat::kFP8}),
            "reduce_at_owner needs combine_format bf16; it is fp8");
  EXPECT_EQ(error_of({.routing = Routing::kSkipAllToAll}),
            "reduce_at_owner must be false where the all-to-all is skipped: nothing is sent");
  auto ep = must(create({}));
  auto tokens = must(world->rank(0).allocate<bf16>(8 * 128));
  auto ids = must(world->rank(0).upload(std::vector<int32_t>(16, 0)));
  EXPECT_EQ(ep->dispatch_async(0, {tokens.data(), ids.data(), 8}).message(),
            "dispatch_async: topk_weights is null");
}

}  // namespace
}  // namespace switchyard
