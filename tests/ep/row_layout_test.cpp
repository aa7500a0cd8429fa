// Where rows lie: ragged and masked groups, any alignment, counts, source ranks, and what becomes of rows
// that only fill up their group. EpHarness checks all of it against the reference.
#include <string>

#include "runtime/ep/exchange_layout.hpp"
#include "step_test.hpp"
#include "switchyard/detail/ep/group_layout.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::must;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::StepTest;

TEST(GroupLayout, ARaggedGroupTakesUpItsRowsAlignedUp) {
  constexpr GroupLayout kLayout{.alignment = 12};
  EXPECT_EQ(kLayout.taken_by(0), 0u);
  EXPECT_EQ(kLayout.taken_by(1), 12u);
  EXPECT_EQ(kLayout.taken_by(12), 12u);
  EXPECT_EQ(kLayout.taken_by(13), 24u);
}
TEST(GroupLayout, AMaskedGroupTakesUpItsCapacityOrMore) {
  constexpr GroupLayout kLayout{.alignment = 4, .capacity = 8};
  EXPECT_EQ(kLayout.taken_by(0), 8u);
  EXPECT_EQ(kLayout.taken_by(8), 8u);
  EXPECT_EQ(kLayout.taken_by(9), 12u);  // too many: the rank's rows exceed its room
}

class RowLayoutTest : public StepTest {
 protected:
  static RunOptions masked(int alignment = 1) {
    RunOptions run = options();
    run.row_layout = RowLayout::kMasked;
    run.row_alignment = alignment;
    run.unwritten = UnwrittenRows::kMarked;
    return run;
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, RowLayoutTest, testing_support::step_variants(),
                         testing_support::step_variant_name);

TEST_P(RowLayoutTest, MaskedGroupsHaveMemoryOfTheirOwn) { check({}, masked()); }
TEST_P(RowLayoutTest, MaskedGroupsOfARankWithoutTokens) {
  check({.n_ranks = 3, .n_experts = 6, .tokens_per_rank = {0, 7, 1}}, masked());
}
TEST_P(RowLayoutTest, MaskedGroupsWithASharedExpert) {
  RunOptions run = masked(5);
  run.shared_expert = SharedExpert::kFused;
  check({.tokens_per_rank = {4, 0}}, run);
}
TEST_P(RowLayoutTest, MaskedGroupsWhereTheAllToAllIsSkipped) {
  RunOptions run = masked(3);
  run.routing = Routing::kSkipAllToAll;
  check({.tokens_per_rank = {6, 6}}, run);
}
TEST_P(RowLayoutTest, AnyAlignment) {
  for (const int alignment : {2, 3, 100, 256}) {
    RunOptions run = options();
    run.row_alignment = alignment;
    run.unwritten = UnwrittenRows::kZeroed;
    check({}, run, 1);
  }
}
TEST_P(RowLayoutTest, ZeroedRowsHaveZeroScalesInEveryPlacement) {
  for (const TokenFormatKind format :
       {TokenFormatKind::kFP8, TokenFormatKind::kMXFP8, TokenFormatKind::kNVFP4}) {
    RunOptions run = masked(7);
    run.unwritten = UnwrittenRows::kZeroed;
    run.format = format;
    check({.hidden = 256, .tokens_per_rank = {3, 2}}, run, 1);
    check({.hidden = 256,
           .tokens_per_rank = {3, 2},
           .max_tokens_per_rank = testing_support::kMaxTokensOfFetchedScales},
          run, 1);
  }
}
TEST_P(RowLayoutTest, MaskedGroupsOverAWire) {
  RunOptions run = masked();
  run.p2p_world_size = 1;
  check({}, run);
}

// The same rows, in other places.
TEST_P(RowLayoutTest, OutputsDoNotDependOnTheLayout) {
  const Shape shape{.n_experts = 8, .tokens_per_rank = {9, 4}};
  const reference::Step step = as_run(testing_support::make_step(shape, 7), options());
  EpHarness ragged(shape, options()), other(shape, masked(16));
  ragged.run_and_check(step);
  other.run_and_check(step);
  EXPECT_EQ(ragged.last_output(), other.last_output());
}

TEST_P(RowLayoutTest, AMaskedGroupThatIsFullIsReportedAndTheNextStepIsRight) {
  const auto [target, mode, protocol] = GetParam();
  auto world = must(World::create({.target = target, .n_ranks = 2}));
  auto ep = must(ExpertParallel::create(*world, {.n_experts = 4,
                                                 .top_k = 2,
                                                 .hidden = 64,
                                                 .max_tokens_per_rank = 4,
                                                 .protocol = protocol,
                                                 .row_layout = RowLayout::kMasked,
                                                 .max_rows_per_expert = 3}));
  EXPECT_EQ(ep->max_recv_rows(), 2u * 3);
  const std::vector<int32_t> too_many(8, 1), few = {0, 1, 2, 3, -1, -1, -1, -1};
  std::vector<Buffer<bf16>> tokens, outputs;
  std::vector<Buffer<int32_t>> ids, expert_ids;
  std::vector<Buffer<uint32_t>> offsets, counts;
  std::vector<Buffer<float>> weights;
  for (int r = 0; r < 2; ++r) {
    Rank& rank = world->rank(r);
    tokens.push_back(must(rank.allocate<bf16>(4 * 64)));
    outputs.push_back(must(rank.allocate<bf16>(4 * 64)));
    ids.push_back(must(rank.upload(too_many)));
    expert_ids.push_back(must(rank.allocate<int32_t>(2)));
    offsets.push_back(must(rank.allocate<uint32_t>(3)));
    counts.push_back(must(rank.allocate<uint32_t>(2)));
    weights.push_back(must(rank.allocate<float>(8)));
  }
  const auto run_step = [&] {
    for (int r = 0; r < 2; ++r) {
      const size_t i = static_cast<size_t>(r);
      const RowBuffers rows = must(ep->row_buffers(r));
      SWITCHYARD_RETURN_IF_ERROR(ep->dispatch(r, {tokens[i].data(), ids[i].data(), 4},
                                              {.rows = rows.rows,
                                               .src_info = rows.src_info,
                                               .max_rows = rows.max_rows,
                                               .row_offsets = offsets[i].data(),
                                               .expert_ids = expert_ids[i].data(),
                                               .row_counts = counts[i].data()}));
      SWITCHYARD_RETURN_IF_ERROR(ep->combine(
          r, {rows.rows, rows.src_info},
          {ids[i].data(), weights[i].data(), 4, {CombineReduction::kWeighted, outputs[i].data()}}));
    }
    return ep->synchronize();
  };
  const Status full = run_step();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.to_string();
  if (protocol == Protocol::kDirect) {
    EXPECT_EQ(must(counts[0].download()), std::vector<uint32_t>({0, 0})) << "nothing has moved";
  }
  for (Buffer<int32_t>& of_rank : ids) ASSERT_TRUE(of_rank.upload(few).ok());
  if (protocol == Protocol::kSlotted) {
    ASSERT_TRUE(ep->reset().ok());
  }
  ASSERT_TRUE(ep->synchronize().ok() || protocol == Protocol::kDirect);
  ASSERT_EQ(run_step().to_string(), Status().to_string());
  EXPECT_EQ(must(counts[0].download()), std::vector<uint32_t>({2, 2}));
  EXPECT_EQ(must(offsets[1].download()), std::vector<uint32_t>({0, 3, 6}));
}

std::string error_of(const ExpertParallelConfig& changes) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  ExpertParallelConfig config = changes;
  config.n_experts = 4;
  config.top_k = 2;
  config.hidden = 64;
  config.max_tokens_per_rank = 8;
  const auto ep = ExpertParallel::create(*world, config);
  return ep.ok() ? "" : ep.status().message();
}

TEST(RowLayout, WrongSettingsAreNamed) {
  EXPECT_EQ(error_of({.row_alignment = 0}), "row_alignment is 0; it must be 1..256");
  EXPECT_EQ(error_of({.row_alignment = 257}), "row_alignment is 257; it must be 1..256");
  EXPECT_EQ(error_of({.max_rows_per_expert = 4}),
            "max_rows_per_expert is 4; it must be 0 where row_layout is ragged");
  EXPECT_EQ(error_of({.row_layout = RowLayout::kMasked, .max_rows_per_expert = -1}),
            "max_rows_per_expert is -1; it must be 0..33553920");
  EXPECT_EQ(
      error_of({.capacity_factor = 2, .row_layout = RowLayout::kMasked}),
      "capacity_factor is 2; it must be 0 where row_layout is masked: max_rows_per_expert says how many "
      "rows there is room for");
  EXPECT_EQ(error_of({.row_layout = RowLayout::kMasked,
                      .max_rows_per_expert = 7,
                      .shared_expert = SharedExpert::kFused}),
            "max_rows_per_expert is 7; it must be at least max_tokens_per_rank (8) where a shared expert is "
            "fused");
  EXPECT_EQ(error_of({.row_layout = RowLayout::kMasked, .row_alignment = 3}), "");
}

// 8 ranks x 1024 tokens x top-8 rows of 14336 bytes, and as many expert outputs.
TEST(RowLayout, RoomForTheWorstCaseIsReservedUnlessAFactorIsAskedFor) {
  ExpertParallelConfig config{.n_experts = 256, .top_k = 8, .hidden = 7168, .max_tokens_per_rank = 1024};
  const uint64_t worst_case = uint64_t{8} * 1024 * 8 * 14336 * 2;
  const uint64_t needed = must(ExpertParallel::memory_needed(config, 8)).total();
  EXPECT_GE(needed, worst_case);
  EXPECT_LT(needed, 2'200'000'000u);
  config.capacity_factor = 2;
  EXPECT_LT(must(ExpertParallel::memory_needed(config, 8)).total(), worst_case / 4 + 10'000'000);
}

TEST(RowLayout, WhatWouldNeedLessMemoryIsNamed) {
  ExpertParallelConfig config{.n_experts = 256,
                              .top_k = 8,
                              .hidden = 7168,
                              .max_tokens_per_rank = 1024,
                              .protocol = Protocol::kDirect};
  EXPECT_EQ(memory_advice(config, 8), "row_layout per-rank would need 0.24 GB, capacity_factor 2 0.47 GB");
  config.p2p_world_size = 4;  // not per rank
  EXPECT_EQ(memory_advice(config, 8).rfind("capacity_factor 2 0.", 0), 0u) << memory_advice(config, 8);
  config.row_layout = RowLayout::kMasked;
  EXPECT_EQ(memory_advice(config, 8), "");
}

TEST(RowLayout, AMaskedGroupHasRoomForEveryTokenOfEveryRank) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  auto ep = must(ExpertParallel::create(*world, {.n_experts = 4,
                                                 .top_k = 2,
                                                 .hidden = 64,
                                                 .max_tokens_per_rank = 5,
                                                 .row_layout = RowLayout::kMasked,
                                                 .row_alignment = 8}));
  EXPECT_EQ(ep->config().max_rows_per_expert, 16);
  EXPECT_EQ(must(ep->row_buffers(0)).max_rows, 2u * 16);
}

}  // namespace
}  // namespace switchyard
