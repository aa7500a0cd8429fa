// Sums of owners that go back as fp8, and what the layouts of rows take of memory.
#include "step_test.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class OwnerSumsTest : public StepTest {
 protected:
  static RunOptions fp8_options() {
    RunOptions run = options();
    run.reduce_at_owner = true;
    run.combine_format = CombineFormat::kFP8;
    return run;
  }
  static void check_sums(const Shape& shape, int num_steps = 2) { check(shape, fp8_options(), num_steps); }
};

INSTANTIATE_TEST_SUITE_P(Targets, OwnerSumsTest,
                         ::testing::Combine(all_targets(),
                                            ::testing::Values(StepMode::kSplit, StepMode::kFused),
                                            ::testing::Values(Protocol::kDirect)),
                         step_variant_name);

TEST_P(OwnerSumsTest, AreEncoded) {
  check_sums({.n_ranks = 3, .n_experts = 9, .top_k = 6, .hidden = 128, .tokens_per_rank = {9, 4, 1}});
  check_sums({.n_experts = 8, .top_k = 5, .hidden = 1280, .tokens_per_rank = {6, 5}}, 1);
}
TEST_P(OwnerSumsTest, OfOneRankAreNone) {
  check_sums({.n_ranks = 1, .n_experts = 4, .top_k = 3, .hidden = 128, .tokens_per_rank = {7}});
}
TEST_P(OwnerSumsTest, OfRanksWithoutTokens) {
  check_sums({.n_ranks = 3, .n_experts = 6, .top_k = 4, .hidden = 128, .tokens_per_rank = {0, 7, 0}});
  check_sums({.hidden = 128, .tokens_per_rank = {0, 0}, .max_tokens_per_rank = 4});
}
TEST_P(OwnerSumsTest, OfMoreRowsThanAStageHolds) {
  RunOptions run = fp8_options();
  run.n_sms = 1;
  check({.n_experts = 40, .top_k = 32, .hidden = 256, .tokens_per_rank = {70, 5}}, run, 1);
}
TEST_P(OwnerSumsTest, WithPaddingAndRepeatedIds) {
  const Shape shape{.n_experts = 4, .top_k = 3, .hidden = 128, .tokens_per_rank = {4, 3}};
  EpHarness harness(shape, fp8_options());
  reference::Step step = as_run(make_step(shape, 3), fp8_options());
  step.topk_ids = {{-1, 0, -1, -1, -1, -1, 3, -1, 2, 1, 1, 0}, {2, -1, 2, 0, 0, 1, -1, -1, -1}};
  harness.run_and_check(step);
}
TEST_P(OwnerSumsTest, OverAWireAndFromTheReceiver) {
  for (const int group : {0, 1})
    for (const RowDelivery delivery : {RowDelivery::kSender, RowDelivery::kReceiver}) {
      RunOptions run = fp8_options();
      run.p2p_world_size = group;
      run.row_delivery = delivery;
      if (!HasFatalFailure())
        check({.n_experts = 6, .top_k = 4, .hidden = 256, .tokens_per_rank = {5, 3}}, run, 1);
    }
}
TEST_P(OwnerSumsTest, InMaskedGroupsWithASharedExpert) {
  RunOptions run = fp8_options();
  run.row_layout = RowLayout::kMasked;
  run.row_alignment = 5;
  run.shared_expert = SharedExpert::kFused;
  check({.top_k = 4, .hidden = 128, .tokens_per_rank = {6, 3}}, run);
}
TEST_P(OwnerSumsTest, OfReplicas) {
  RunOptions run = fp8_options();
  run.placement = must(ExpertPlacement::from_lists(5, {{4, 0, 2}, {}, {3, 1, 4}}));
  run.format = TokenFormatKind::kFP8;
  check({.n_ranks = 3, .n_experts = 5, .top_k = 4, .hidden = 128, .tokens_per_rank = {5, 3, 2}}, run);
}
TEST(OwnerSums, InWeakMemory) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    RunOptions run = weak_run(seed, Protocol::kDirect);
    run.reduce_at_owner = true;
    run.combine_format = CombineFormat::kFP8;
    const Shape shape{.n_experts = 4, .top_k = 4, .hidden = 128, .tokens_per_rank = {3, 2}};
    EXPECT_EQ(EpHarness(shape, run).run_and_compare(as_run(make_step(shape, seed), run)), "")
        << "seed " << seed;
  }
}

// 8 ranks, hidden 7168, top-8, 256 experts, bf16, and no step can be lost.
uint64_t memory_of(RowLayout layout, int max_tokens) {
  return must(ExpertParallel::memory_needed({.n_experts = 256,
                                             .top_k = 8,
                                             .hidden = 7168,
                                             .max_tokens_per_rank = max_tokens,
                                             .row_layout = layout},
                                            8))
      .total();
}
TEST(MemoryOfLayouts, IsHardlyMoreThanRowsAndExpertOutputs) {
  constexpr uint64_t kRowBytes = 2 * 7168;
  const uint64_t ragged = memory_of(RowLayout::kRagged, 1024);
  EXPECT_GE(ragged, 8 * 1024 * 8 * 2 * kRowBytes);
  EXPECT_LE(ragged, 2'200'000'000u);
  const uint64_t per_rank = memory_of(RowLayout::kPerRank, 1024);
  EXPECT_GE(per_rank, 8 * 1024 * 2 * kRowBytes);
  EXPECT_LE(per_rank, 300'000'000u);
  const uint64_t masked = memory_of(RowLayout::kMasked, 128);
  EXPECT_GE(masked, 32 * 8 * 128 * 2 * kRowBytes);
  EXPECT_LE(masked, 1'050'000'000u);
}

}  // namespace
}  // namespace switchyard
