// How long a rank has waited for each other one: rank_wait_ns of DispatchInput, DispatchOutput,
// CombineOutput. The emulator's time is virtual here, so that a late rank is late by what the test says, and
// others hardly.
#include "step_runner.hpp"
#include "step_test.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

constexpr uint64_t kLateNs = 50'000'000;
const HostDeviceOptions kVirtualTime{.mode = EmulatorMode::kSimulated, .seed = 11};
const Shape kFourRanks{
    .n_ranks = 4, .n_experts = 8, .top_k = 3, .hidden = 64, .tokens_per_rank = {7, 0, 12, 5}};

class RankWaitsTest : public StepTest {
 protected:
  static Protocol protocol() { return std::get<2>(GetParam()); }
  static RunOptions timed() {
    RunOptions run = options();
    run.host = kVirtualTime;
    run.times_ranks = true;
    return run;
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, RankWaitsTest, step_variants(), step_variant_name);

// What was added between two looks at the entries.
void expect_waits_for(int late_rank, int rank, const std::vector<uint64_t>& before,
                      const std::vector<uint64_t>& after) {
  for (int peer = 0; peer < static_cast<int>(after.size()); ++peer) {
    SCOPED_TRACE("rank " + std::to_string(rank) + " for rank " + std::to_string(peer));
    const uint64_t wait_ns = after[static_cast<size_t>(peer)] - before[static_cast<size_t>(peer)];
    if (peer == rank) {
      EXPECT_EQ(wait_ns, 0u);
    } else if (peer == late_rank) {
      EXPECT_GT(wait_ns, kLateNs * 8 / 10);
      EXPECT_LT(wait_ns, kLateNs * 18 / 10);
    } else {
      EXPECT_LT(wait_ns, kLateNs / 2);
    }
  }
}

// A step in which nobody is late, and one in which a rank is late with its dispatch and another one with its
// combine. Both steps are right.
void check_late_ranks(const Shape& shape, const RunOptions& run, const LateRanks& late) {
  EpHarness harness(shape, run);
  ASSERT_TRUE(harness.ep().warm_up().ok());
  harness.run_and_check(as_run(make_step(shape, 1), run));
  std::vector<RankWaits> before;
  const std::vector<uint64_t> first(static_cast<size_t>(shape.n_ranks), 1000);
  for (int rank = 0; rank < shape.n_ranks; ++rank) {
    before.push_back(harness.rank_waits(rank));
    expect_waits_for(-1, rank, first, before.back().of_dispatch);
    expect_waits_for(-1, rank, first, before.back().of_combine);
  }
  harness.make_late(late);
  harness.run_and_check(as_run(make_step(shape, 2), run));
  for (int rank = 0; rank < shape.n_ranks; ++rank) {
    const RankWaits after = harness.rank_waits(rank);
    expect_waits_for(late.of_dispatch, rank, before[static_cast<size_t>(rank)].of_dispatch,
                     after.of_dispatch);
    expect_waits_for(late.of_combine, rank, before[static_cast<size_t>(rank)].of_combine, after.of_combine);
  }
}

TEST_P(RankWaitsTest, ALateRankIsLateInItsEntryOnly) {
  for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kMasked, RowLayout::kPerRank}) {
    if (layout == RowLayout::kPerRank && protocol() == Protocol::kSlotted) continue;
    SCOPED_TRACE(to_string(layout));
    RunOptions run = timed();
    run.row_layout = layout;
    check_late_ranks(kFourRanks, run, {2, 1, kLateNs});
  }
}

// Of a format whose scales all blocks wait for, with a shared expert.
TEST_P(RankWaitsTest, EveryBlockWaitsAndOneCounts) {
  RunOptions run = timed();
  run.format = TokenFormatKind::kFP8;
  run.combine_format = CombineFormat::kFP8;
  run.shared_expert = SharedExpert::kFused;
  Shape shape = kFourRanks;
  shape.hidden = 128;
  check_late_ranks(shape, run, {0, 3, kLateNs});
}

TEST_P(RankWaitsTest, FarRanksCountLikeNearOnes) {
  RunOptions run = timed();
  run.p2p_world_size = 2;
  check_late_ranks(kFourRanks, run, {3, 0, kLateNs});
}

// The second of two ranks that share a thread, and more experts than threads.
TEST_P(RankWaitsTest, MoreRanksThanThreads) {
  if (std::get<0>(GetParam()) == TargetChoice::kCuda) GTEST_SKIP() << "a GPU has fewer queues";
  RunOptions run = timed();
  run.n_sms = 1;
  run.num_threads = 32;
  const Shape shape{
      .n_ranks = 34, .n_experts = 68, .top_k = 2, .hidden = 32, .tokens_per_rank = std::vector<int>(34, 1)};
  check_late_ranks(shape, run, {33, 32, kLateNs});
}

TEST_P(RankWaitsTest, EveryReplayOfAGraphAdds) {
  StepRunner runner({.n_ranks = 2, .tokens_per_rank = {4, 4}}, {std::get<0>(GetParam()), protocol()},
                    kVirtualTime);
  std::vector<Buffer<uint64_t>> waits;
  for (int rank = 0; rank < 2; ++rank)
    waits.push_back(must(runner.world->rank(rank).upload(std::vector<uint64_t>{0, 0})));
  runner.upload(make_step({.n_ranks = 2, .tokens_per_rank = {4, 4}}, 3));
  ASSERT_TRUE(runner.ep->warm_up().ok());
  const std::unique_ptr<Graph> graph = must(runner.world->capture([&] {
    for (int rank = 0; rank < 2; ++rank) {
      const Rank& here = runner.world->rank(rank);
      if (rank == 1)
        SWITCHYARD_RETURN_IF_ERROR(
            here.launch(kernel_table(here).stall, {.num_blocks = 1, .num_threads = 32}, {kLateNs}));
      DispatchOutput output = runner.dispatch_output(rank);
      output.rank_wait_ns = waits[static_cast<size_t>(rank)].data();
      SWITCHYARD_RETURN_IF_ERROR(runner.ep->dispatch(rank, runner.dispatch_input(rank), output));
    }
    for (int rank = 0; rank < 2; ++rank)
      SWITCHYARD_RETURN_IF_ERROR(runner.enqueue_combine(rank, std::get<1>(GetParam())));
    return Status();
  }));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graph->launch().ok());
  ASSERT_TRUE(runner.ep->synchronize().ok());
  const std::vector<uint64_t> of_first = must(waits[0].download()), of_late = must(waits[1].download());
  EXPECT_EQ(of_first[0], 0u);
  EXPECT_GT(of_first[1], 3 * kLateNs * 8 / 10);
  EXPECT_LT(of_first[1], 3 * kLateNs * 18 / 10);
  EXPECT_LT(of_late[0], kLateNs);
  EXPECT_EQ(of_late[1], 0u);
}

// The deadline is that of a step that nobody times, and the fault says the same.
TEST_P(RankWaitsTest, ARankThatDoesNotComeIsAFaultAndAddsNothing) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  RunOptions run = timed();
  run.timeout_ns = 8 * kLateNs;
  for (const bool times_ranks : {false, true}) {
    run.times_ranks = times_ranks;
    EpHarness harness(kFourRanks, run);
    ASSERT_TRUE(harness.ep().warm_up().ok());
    harness.run_and_check(make_step(kFourRanks, 4));
    const std::vector<uint64_t> before =
        times_ranks ? harness.rank_waits(0).of_dispatch : std::vector<uint64_t>();
    const Status status = harness.dispatch_some(make_step(kFourRanks, 5), {0, 1, 2});
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.message().find("for rank 3"), std::string::npos) << status.to_string();
    for (int rank = 0; rank < 3; ++rank)
      if (const std::optional<FaultRecord> fault = harness.ep().fault(rank)) {
        EXPECT_GE(fault->elapsed_ns, run.timeout_ns);
        EXPECT_LT(fault->elapsed_ns, run.timeout_ns * 18 / 10);
      }
    if (!times_ranks) continue;
    EXPECT_EQ(harness.rank_waits(0).of_dispatch[3], before[3]);
    ASSERT_TRUE(harness.ep().reset().ok());
    harness.run_and_check(make_step(kFourRanks, 6));
  }
}

TEST(RankWaits, WeakMemory) {
  for (uint64_t seed = 0; seed < seeds(24); ++seed) {
    RunOptions run = weak_run(seed, seed % 4 < 2 ? Protocol::kDirect : Protocol::kSlotted);
    run.times_ranks = true;
    EpHarness harness(kFourRanks, run);
    for (uint64_t i = 0; i < 2; ++i)
      ASSERT_EQ(harness.run_and_compare(make_step(kFourRanks, seed + i)), "") << "seed " << seed;
  }
}

TEST(RankWaits, WhatCannotBeWrittenIsRefused) {
  StepRunner runner({.n_ranks = 1, .tokens_per_rank = {2}}, {TargetChoice::kHost, Protocol::kDirect});
  alignas(16) uint64_t waits[3] = {};
  DispatchInput input = runner.dispatch_input(0);
  DispatchOutput output = runner.dispatch_output(0);
  const auto expect_message = [](const Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  };
  output.rank_wait_ns = waits + 1;
  expect_message(runner.ep->dispatch(0, input, output), "it must be aligned to 16 bytes");
  output.rank_wait_ns = waits;
  input.rank_wait_ns = waits;
  expect_message(runner.ep->dispatch(0, input, output), "rank_wait_ns of the input must be null");
  input.rank_wait_ns = waits + 1;
  expect_message(runner.ep->dispatch_async(0, input), "dispatch_async: rank_wait_ns is ");
  input.rank_wait_ns = nullptr;
  ASSERT_TRUE(runner.ep->dispatch(0, input, output).ok());
  ASSERT_TRUE(runner.ep->synchronize(0).ok());
  CombineOutput sums;
  sums.rank_wait_ns = waits + 1;
  expect_message(runner.ep->combine(0, {}, sums), "combine: rank_wait_ns is ");

  const auto alone = must(create_small(*runner.world, {.routing = Routing::kSkipAllToAll}));
  expect_message(
      alone->dispatch(
          0, {}, {.row_offsets = output.row_offsets, .expert_ids = output.expert_ids, .rank_wait_ns = waits}),
      "ranks that skip the all-to-all do not wait for each other");
}

}  // namespace
}  // namespace switchyard
