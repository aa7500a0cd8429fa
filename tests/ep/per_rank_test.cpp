// Rows per rank: a token comes once to each rank that owns some of its experts. What holds for all ways of
// sending one row is in one_row_test.cpp.
#include "step_test.hpp"
#include "switchyard/row_readiness.hpp"

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

class PerRankTest : public OneRowTest {};

INSTANTIATE_TEST_SUITE_P(Targets, PerRankTest, testing_support::one_row_variants({OneRow::kPerRank}),
                         testing_support::one_row_variant_name);

TEST_P(PerRankTest, FormatsWithScales) {
  for (const TokenFormatKind format : {TokenFormatKind::kFP8, TokenFormatKind::kMXFP8,
                                       TokenFormatKind::kNVFP4, TokenFormatKind::kFP8UE8M0}) {
    RunOptions run = options();
    run.format = format;
    check({.hidden = 256, .tokens_per_rank = {3, 2}}, run, 1);
  }
}
TEST_P(PerRankTest, WideIdsAndGaps) {
  RunOptions run = options();
  run.style = {.has_wide_ids = true, .gap_bytes = 16};
  check({.n_ranks = 3, .n_experts = 6, .top_k = 3, .tokens_per_rank = {5, 0, 4}}, run);
}
TEST_P(PerRankTest, EncodedTokensAndAnInputScaleOnTheDevice) {
  RunOptions run = options();
  run.format = TokenFormatKind::kNVFP4;
  run.style = {.has_wide_ids = true, .is_encoded = true, .has_device_scale = true, .gap_bytes = 16};
  check({.hidden = 256, .tokens_per_rank = {3, 2}}, run, 1);
  run.style.is_encoded = false;
  check({.hidden = 256, .tokens_per_rank = {3, 2}}, run, 1);
}
TEST_P(PerRankTest, CombineInFP8WithASharedExpert) {
  RunOptions run = options();
  run.combine_format = CombineFormat::kFP8;
  run.shared_expert = SharedExpert::kFused;
  check({.top_k = 4, .hidden = 128, .tokens_per_rank = {4, 0}}, run, 1);
}
TEST_P(PerRankTest, WithoutAllToAll) {
  RunOptions run = options();
  run.routing = Routing::kSkipAllToAll;
  check({.top_k = 3, .tokens_per_rank = {6, 6}}, run);
}
// One rank's experts get everything: there is room by default.
TEST_P(PerRankTest, AllTokensOnOneRankFit) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 2, .tokens_per_rank = {4, 4, 4}};
  reference::Step step = as_run(make_step(shape, 5), options());
  for (auto& ids : step.topk_ids)
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = 4 + static_cast<int>(i % 2);
  EpHarness harness(shape, options());
  EXPECT_EQ(harness.ep().max_recv_rows(), 3u * 4);
  harness.run_and_check(step);
}
TEST(PerRank, WhatItCannotDoIsRefused) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto error_of = [&](ExpertParallelConfig changes) {
    changes.row_layout = RowLayout::kPerRank;
    const auto ep = create_small(*world, changes);
    return ep.ok() ? "" : ep.status().message();
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({.protocol = Protocol::kSlotted}),
            "protocol is slotted; it must be direct or automatic where row_layout is per-rank");
  EXPECT_EQ(error_of({.capacity_factor = 2}),
            "capacity_factor is 2; it must be 0 where row_layout is per-rank: there is always room");
  EXPECT_EQ(error_of({.max_rows_per_expert = 4}),
            "max_rows_per_expert is 4; it must be 0 where row_layout is per-rank");
  EXPECT_EQ(
      error_of({.dispatch_format = TokenFormatKind::kNVFP4ByExpert, .expert_input_scales = {1, 1, 1, 1}}),
      "format nvfp4-by-expert encodes a token for each expert; where row_layout is per-rank it comes once");
  EXPECT_EQ(
      error_of({.p2p_world_size = 1}),
      "p2p_world_size is 1 and the number of ranks 2; where row_layout is per-rank all ranks must reach "
      "each other's memory: p2p_world_size 0, and at most 64 ranks");
  EXPECT_EQ(error_of({.counts_experts = true}),
            "counts_experts must be false where row_layout is per-rank: rows have no expert");
}

TEST(PerRank, CallsNameWhatIsMissing) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  auto ep = must(create_small(*world, {.row_layout = RowLayout::kPerRank}));
  EXPECT_EQ(ep->config().protocol, Protocol::kDirect);
  EXPECT_EQ(ep->num_groups(), 1);
  EXPECT_EQ(ep->n_local_experts(), 2);
  auto tokens = must(world->rank(0).allocate<bf16>(8 * 128));
  auto ids = must(world->rank(0).upload(std::vector<int32_t>(16, 0)));
  EXPECT_EQ(ep->dispatch_async(0, {tokens.data(), ids.data(), 8}).message(),
            "dispatch_async: topk_weights is null");
  EXPECT_NE(ep->row_readiness(0, 1).status().message().find("per-rank"), std::string::npos);
  auto ragged = must(create_small(*world, {}));
  auto offsets = must(world->rank(0).allocate<uint32_t>(4));
  const DispatchOutput output{
      .row_offsets = offsets.data(), .expert_ids = ids.data(), .row_experts = ids.data()};
  EXPECT_EQ(ragged->dispatch(0, {tokens.data(), ids.data(), 8}, output).message(),
            "dispatch: row_experts must be null: row_layout is ragged, and not per-rank");
}

// 8 ranks x 1024 tokens x 14336 bytes, twice: rows and expert outputs.
TEST(PerRank, TheWorstCaseIsSmall) {
  const MemoryNeeded needed = must(ExpertParallel::memory_needed({.n_experts = 256,
                                                                  .top_k = 8,
                                                                  .hidden = 7168,
                                                                  .max_tokens_per_rank = 1024,
                                                                  .row_layout = RowLayout::kPerRank},
                                                                 8));
  EXPECT_LT(needed.total(), 300'000'000u);
}

}  // namespace
}  // namespace switchyard
