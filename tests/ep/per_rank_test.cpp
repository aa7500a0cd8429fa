// Rows per rank: a token comes once to each rank that owns some of its experts. What holds for all ways of
// sending one row is in one_row_test.cpp.
#include <random>

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

class CountRoutingTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  struct Counts {
    std::vector<int32_t> tokens_of_rank, choices_of_expert;
    std::vector<uint8_t> is_token_in_rank;

    friend bool operator==(const Counts&, const Counts&) = default;
  };
  // Totals begin at 10 and at 20.
  static Counts expected(const std::vector<int64_t>& ids, int top_k, int n_experts, int n_ranks) {
    const size_t num_tokens = ids.size() / static_cast<size_t>(top_k);
    Counts counts{std::vector<int32_t>(static_cast<size_t>(n_ranks), 10),
                  std::vector<int32_t>(static_cast<size_t>(n_experts), 20),
                  std::vector<uint8_t>(num_tokens * static_cast<size_t>(n_ranks), 0)};
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= n_experts) continue;
      const auto rank = static_cast<size_t>(ids[i] / (n_experts / n_ranks));
      ++counts.choices_of_expert[static_cast<size_t>(ids[i])];
      uint8_t& is_there =
          counts.is_token_in_rank[i / static_cast<size_t>(top_k) * static_cast<size_t>(n_ranks) + rank];
      counts.tokens_of_rank[rank] += is_there == 0;
      is_there = 1;
    }
    return counts;
  }
  static Counts counted(World& world, const std::vector<int64_t>& ids, int top_k, int n_experts) {
    const Rank& rank = world.rank(0);
    const Counts first = expected({}, top_k, n_experts, world.n_ranks());
    const int num_tokens = static_cast<int>(ids.size()) / top_k;
    const auto given = must(rank.upload(ids));
    auto of_rank = must(rank.upload(first.tokens_of_rank));
    auto of_expert = must(rank.upload(first.choices_of_expert));
    auto in_rank = must(rank.upload(
        std::vector<uint8_t>(static_cast<size_t>(num_tokens) * static_cast<size_t>(world.n_ranks()), 0xee)));
    const Status status =
        ExpertParallel::count_routing(world, 0, {given.data(), num_tokens, top_k, n_experts},
                                      {of_rank.data(), of_expert.data(), in_rank.data()});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return {must(of_rank.download()), must(of_expert.download()), must(in_rank.download())};
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, CountRoutingTest, testing_support::all_targets(),
                         [](const auto& info) { return testing_support::target_name(info.param); });

// Padding, repeats, and ids that are no expert's, of 32 bits or not.
TEST_P(CountRoutingTest, CountsWhatAPlainLoopCounts) {
  SWITCHYARD_SKIP_IF_ABSENT(GetParam());
  std::mt19937_64 random(5);
  struct Case {
    int n_ranks, n_experts, top_k, num_tokens;
  };
  for (const auto& [n_ranks, n_experts, top_k, num_tokens] :
       {Case{1, 1, 1, 1}, Case{2, 8, 3, 700}, Case{3, 6, 8, 33}, Case{8, 256, 8, 300}, Case{4, 1024, 32, 40},
        Case{2, 4, 2, 0}}) {
    const auto world = must(World::create({.target = GetParam(), .n_ranks = n_ranks}));
    std::vector<int64_t> ids(static_cast<size_t>(num_tokens * top_k));
    for (int64_t& id : ids) {
      const uint64_t drawn = random() % 16;
      id = drawn == 0   ? -1
           : drawn == 1 ? n_experts
           : drawn == 2 ? (int64_t{1} << 32) + 1
                        : static_cast<int64_t>(random() % static_cast<uint64_t>(n_experts));
    }
    EXPECT_EQ(counted(*world, ids, top_k, n_experts), expected(ids, top_k, n_experts, n_ranks))
        << n_ranks << " ranks, " << n_experts << " experts, top " << top_k << ", " << num_tokens << " tokens";
  }
}

TEST(CountRouting, NamesWhatIsWrong) {
  const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto memory = must(world->rank(0).allocate<int64_t>(16));
  const auto of_rank = must(world->rank(0).allocate<int32_t>(16));
  const auto in_rank = must(world->rank(0).allocate<uint8_t>(16));
  const RoutingCounts counts{of_rank.data(), of_rank.data() + 4, in_rank.data()};
  const auto error_of = [&](int rank, const RoutingInput& input, const RoutingCounts& out) {
    return ExpertParallel::count_routing(*world, rank, input, out).message();
  };
  EXPECT_EQ(error_of(2, {memory.data(), 1, 1, 4}, counts),
            "count_routing: rank is 2; it must be a rank of this process");
  EXPECT_EQ(error_of(0, {memory.data(), -1, 1, 4}, counts),
            "count_routing: num_tokens is -1; it must be 0..65535");
  EXPECT_EQ(error_of(0, {memory.data(), 1, 33, 4}, counts), "count_routing: top_k is 33; it must be 1..32");
  EXPECT_EQ(error_of(0, {memory.data(), 1, 1, 3}, counts),
            "count_routing: n_experts is 3; it must be 1..1024 and a multiple of the number of ranks (2)");
  EXPECT_EQ(error_of(0, {nullptr, 1, 1, 4}, counts), "count_routing: topk_ids is null");
  EXPECT_EQ(error_of(0, {memory.data(), 1, 1, 4}, {of_rank.data(), nullptr, in_rank.data()}),
            "count_routing: choices_of_expert is null");
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
