// Sums that the owner of a token's experts makes, so that one row per (token, rank) goes back: against a
// reference that rounds likewise. What holds for all ways of sending one row is in one_row_test.cpp.
#include "format_sweep.hpp"
#include "step_test.hpp"

namespace switchyard {
namespace {

using testing_support::create_small;
using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::must;
using testing_support::OneRow;
using testing_support::OneRowTest;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::step_formats;

class ReductionTest : public OneRowTest {};

INSTANTIATE_TEST_SUITE_P(Targets, ReductionTest,
                         testing_support::one_row_variants({OneRow::kReduced, OneRow::kDeliveredAndReduced}),
                         testing_support::one_row_variant_name);

TEST_P(ReductionTest, EveryFormatNearAndFar) {
  for (const TokenFormatKind format : step_formats()) {
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
  const auto error_of = [&](ExpertParallelConfig changes) {
    changes.reduce_at_owner = true;
    const auto ep = create_small(*world, changes);
    return ep.ok() ? "" : ep.status().message();
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({.protocol = Protocol::kSlotted}),
            "reduce_at_owner must be false where protocol is slotted: it needs the direct one");
  EXPECT_EQ(error_of({.row_layout = RowLayout::kPerRank}),
            "reduce_at_owner must be false where row_layout is per-rank: the caller sums up there");
  EXPECT_EQ(error_of({.combine_format = CombineFormat::kFP8}), "");
  EXPECT_EQ(error_of({.routing = Routing::kSkipAllToAll}),
            "reduce_at_owner must be false where the all-to-all is skipped: nothing is sent");
  auto ep = must(create_small(*world, {.reduce_at_owner = true}));
  auto tokens = must(world->rank(0).allocate<bf16>(8 * 128));
  auto ids = must(world->rank(0).upload(std::vector<int32_t>(16, 0)));
  EXPECT_EQ(ep->dispatch_async(0, {tokens.data(), ids.data(), 8}).message(),
            "dispatch_async: topk_weights is null");
}

}  // namespace
}  // namespace switchyard
