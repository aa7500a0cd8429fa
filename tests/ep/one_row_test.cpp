// One row for all experts that a token has on a rank: rows per rank, rows that the receiver fills, sums that
// the owner makes. EpHarness checks rows, counts, choices and outputs against the reference.
#include "step_test.hpp"
#include "sweep.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::kFewCases;
using testing_support::make_step;
using testing_support::must;
using testing_support::OneRow;
using testing_support::OneRowTest;
using testing_support::RunOptions;
using testing_support::Shape;

INSTANTIATE_TEST_SUITE_P(Targets, OneRowTest,
                         testing_support::one_row_variants({OneRow::kPerRank, OneRow::kDelivered,
                                                            OneRow::kReduced, OneRow::kDeliveredAndReduced}),
                         testing_support::one_row_variant_name);

TEST_P(OneRowTest, TokensHaveSeveralExpertsOnARank) {
  check({.n_ranks = 3, .n_experts = 9, .top_k = 6, .tokens_per_rank = {9, 4, 1}});
}
TEST_P(OneRowTest, OneRank) { check({.n_ranks = 1, .n_experts = 4, .top_k = 3, .tokens_per_rank = {7}}); }
TEST_P(OneRowTest, RanksWithoutTokens) {
  check({.n_ranks = 3, .n_experts = 6, .top_k = 4, .tokens_per_rank = {0, 7, 0}});
  check({.tokens_per_rank = {0, 0}, .max_tokens_per_rank = 4});
}
// More ids than a block keeps numbers of in shared memory, and more rows than warps.
TEST_P(OneRowTest, ManyTokens) {
  RunOptions run = options();
  run.n_sms = 1;
  check({.n_experts = 8, .top_k = 8, .hidden = 16, .tokens_per_rank = {140, 130}}, run, 1);
}
TEST_P(OneRowTest, ManyChoices) {
  check({.n_ranks = 2, .n_experts = 40, .top_k = 32, .tokens_per_rank = {5, 3}}, options(), 1);
  check({.n_ranks = 2, .n_experts = 40, .top_k = 17, .tokens_per_rank = {5, 3}}, options(), 1);
}
TEST_P(OneRowTest, PaddingRepeatedIdsAndARankWithoutRows) {
  const Shape shape{.n_experts = 4, .top_k = 3, .tokens_per_rank = {4, 3}};
  EpHarness harness(shape, options());
  reference::Step step = as_run(make_step(shape, 3), options());
  step.topk_ids = {{-1, 0, -1, -1, -1, -1, 3, -1, 2, 1, 1, 0}, {2, -1, 2, 0, 0, 1, -1, -1, -1}};
  harness.run_and_check(step);
  if (HasFatalFailure()) return;
  step.topk_ids = {{0, 1, 0, 1, 1, 1, 0, 0, -1, 1, 0, 0}, {1, 1, 0, 0, 1, 0, -1, 0, 1}};
  harness.run_and_check(step);
}
TEST_P(OneRowTest, MaskedAndAlignedGroupsWithASharedExpert) {
  for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kMasked}) {
    RunOptions run = options();
    if (run.row_layout != RowLayout::kPerRank) run.row_layout = layout;
    run.row_alignment = 5;
    run.shared_expert = SharedExpert::kFused;
    if (!is_reduced()) run.unwritten = UnwrittenRows::kZeroed;
    if (!HasFatalFailure()) check({.top_k = 4, .tokens_per_rank = {6, 3}}, run);
    if (run.row_layout == RowLayout::kPerRank) return;
  }
}
TEST_P(OneRowTest, ReplicasAndARankWithoutExperts) {
  RunOptions run = options();
  run.placement = must(ExpertPlacement::from_lists(5, {{4, 0, 2}, {}, {3, 1, 4}}));
  check({.n_ranks = 3, .n_experts = 5, .top_k = 4, .tokens_per_rank = {5, 3, 2}}, run);
}
TEST_P(OneRowTest, StepsBackToBack) {
  const Shape shape{.n_experts = 8, .top_k = 5, .tokens_per_rank = {6, 3}};
  for (const bool in_place : {false, true}) {
    RunOptions run = options();
    run.unwritten = UnwrittenRows::kLeft;
    run.experts_in_place = in_place;
    std::vector<reference::Step> steps;
    for (uint64_t seed = 1; seed <= 3; ++seed) steps.push_back(as_run(make_step(shape, seed), run));
    EXPECT_EQ(EpHarness(shape, run).run_back_to_back(steps), "");
  }
}
TEST_P(OneRowTest, ABadIdIsNamed) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape{.top_k = 3};
  EpHarness harness(shape, options());
  reference::Step step = as_run(make_step(shape, 1), options());
  step.topk_ids[1][0] = 99;
  // Experts are kernels of the caller's, which do not know of the fault: they would read rows that peers
  // still write (docs/memory-model.md), and ThreadSanitizer would see that.
  Status status = kFewCases ? harness.dispatch_some(step, {0, 1}) : harness.enqueue_steps(step, 2);
  if (status.ok()) status = harness.ep().synchronize();
  EXPECT_NE(status.message().find("topk_ids of rank 1 holds 99"), std::string::npos) << status.to_string();
  ASSERT_TRUE(harness.ep().reset().ok());
  harness.run_and_check(as_run(make_step(shape, 2), options()));
}

}  // namespace
}  // namespace switchyard
