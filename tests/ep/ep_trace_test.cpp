// The trace of the expert-parallel kernels, on every target: every block of every rank says what it did, and
// a dead peer is the wait that ran out.
#include <algorithm>

#include "ep_harness.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class EpTrace : public testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Targets, EpTrace, testing_support::all_targets(),
                         [](const auto& info) { return testing_support::target_name(info.param); });

int64_t count(const BlockTrace& block, TraceName name) {
  return std::count_if(block.events.begin(), block.events.end(),
                       [&](const TraceEvent& event) { return event.name == name; });
}

TEST_P(EpTrace, EveryBlockOfEveryRankSaysWhatItDid) {
  const Shape shape;
  for (const StepMode mode : {StepMode::kSplit, StepMode::kFused}) {
    const RunOptions run{.target = GetParam(), .mode = mode, .n_sms = 3};
    EpHarness harness(shape, run);
    ASSERT_TRUE(harness.ep().enable_trace(1024).ok());
    const int num_steps = 2;
    for (int step_idx = 0; step_idx < num_steps; ++step_idx)
      harness.run_and_check(make_step(shape, 3 + static_cast<uint64_t>(step_idx)));
    const std::vector<RankTrace> ranks = must(harness.ep().take_trace());
    ASSERT_EQ(ranks.size(), 2u);
    for (const RankTrace& rank : ranks) {
      ASSERT_EQ(rank.blocks.size(), static_cast<size_t>(run.n_sms));
      int64_t num_signals = 0;
      for (size_t block_idx = 0; block_idx < rank.blocks.size(); ++block_idx) {
        const BlockTrace& block = rank.blocks[block_idx];
        EXPECT_EQ(block.num_dropped, 0u);
        EXPECT_EQ(count(block, TraceName::kWatch), block_idx == 0 ? num_steps : 0);
        EXPECT_EQ(count(block, TraceName::kSend), block_idx == 0 ? 0 : num_steps);
        for (const TraceName role : {TraceName::kCountMessages, TraceName::kCollectCounts,
                                     TraceName::kBuildTables, TraceName::kDecode, TraceName::kReadRanges,
                                     TraceName::kSendRows, TraceName::kCollectRows, TraceName::kReduce})
          EXPECT_EQ(count(block, role), num_steps) << to_string(role) << " of block " << block_idx;
        num_signals += count(block, TraceName::kSignal);
        for (const TraceEvent& event : block.events) {
          EXPECT_LE(event.begin_ns, event.end_ns);
          if (is_wait(event.name)) {
            EXPECT_LT(event.late_rank, 2);
          }
        }
      }
      EXPECT_EQ(num_signals, num_steps) << "the last block of each step signals";
    }
    for (const RankTrace& rank : must(harness.ep().take_trace()))
      for (const BlockTrace& block : rank.blocks) EXPECT_TRUE(block.events.empty()) << "taken already";
  }
}

// The slotted protocol misses a dead peer's messages, the direct one its counts.
void expect_dead_peer_in_trace(TargetChoice target, Protocol protocol, Phase phase) {
  auto world = must(World::create({.target = target, .n_ranks = 3}));
  auto ep = must(ExpertParallel::create(*world, {.n_experts = 6,
                                                 .top_k = 1,
                                                 .hidden = 8,
                                                 .max_tokens_per_rank = 4,
                                                 .n_sms = 2,
                                                 .timeout_ns = 1'000'000'000,
                                                 .protocol = protocol}));
  ASSERT_TRUE(ep->enable_trace(1024).ok());
  std::vector<Buffer<uint32_t>> offsets;
  std::vector<Buffer<int32_t>> ids;
  for (const int rank : {0, 2}) {
    offsets.push_back(must(world->rank(rank).allocate<uint32_t>(3)));
    ids.push_back(must(world->rank(rank).allocate<int32_t>(2)));
    ASSERT_TRUE(
        ep->dispatch(rank, {}, {.row_offsets = offsets.back().data(), .expert_ids = ids.back().data()}).ok());
  }
  ASSERT_EQ(ep->synchronize().code(), StatusCode::kDeadlineExceeded);
  int num_timed_out = 0;
  for (const RankTrace& rank : must(ep->take_trace()))
    for (const BlockTrace& block : rank.blocks)
      for (const TraceEvent& event : block.events) {
        if (event.name == TraceName::kAbandonedWait || event.name == TraceName::kTimedOutWait) {
          EXPECT_EQ(event.late_rank, 1);
        }
        if (event.name != TraceName::kTimedOutWait) continue;
        ++num_timed_out;
        EXPECT_EQ(event.phase, phase);
        EXPECT_GE(event.end_ns - event.begin_ns, 500'000'000u);
      }
  EXPECT_GT(num_timed_out, 0);
  EXPECT_TRUE(ep->reset({0, 2}).ok());
  EXPECT_EQ(must(ep->take_trace()).size(), 2u);
}

TEST_P(EpTrace, ADeadPeerIsTheWaitThatRanOut) {
  expect_dead_peer_in_trace(GetParam(), Protocol::kSlotted, Phase::kDispatchWait);
  expect_dead_peer_in_trace(GetParam(), Protocol::kDirect, Phase::kDispatchAsync);
}

TEST_P(EpTrace, MisuseIsNamed) {
  EpHarness harness(Shape(), {.target = GetParam()});
  ExpertParallel& ep = harness.ep();
  const auto expect_message = [](const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  };
  expect_message(ep.take_trace().status(), StatusCode::kFailedPrecondition, "call enable_trace() first");
  expect_message(ep.enable_trace(0), StatusCode::kInvalidArgument, "events_per_block is 0; it must be 1..");
  expect_message(ep.enable_trace(UINT32_MAX), StatusCode::kInvalidArgument, "events_per_block is 4294967295");
  ASSERT_TRUE(ep.enable_trace(1).ok());
  expect_message(ep.enable_trace(1), StatusCode::kFailedPrecondition, "on already");
  harness.run_and_check(make_step(Shape(), 4));
  const BlockTrace block = must(ep.take_trace())[0].blocks[0];
  EXPECT_EQ(block.events.size(), 1u);
  EXPECT_GT(block.num_dropped, 5u);
}

// Any interleaving, in virtual time.
TEST(EpTraceSimulated, EveryBlockOfEveryRankSaysWhatItDid) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EpHarness harness(Shape(), {.host = {.mode = EmulatorMode::kSimulated, .seed = seed}});
    ASSERT_TRUE(harness.ep().enable_trace(1024).ok());
    harness.run_and_check(make_step(Shape(), seed));
    for (const RankTrace& rank : must(harness.ep().take_trace()))
      for (const BlockTrace& block : rank.blocks) {
        EXPECT_EQ(count(block, TraceName::kDecode), 1);
        EXPECT_EQ(count(block, TraceName::kTimedOutWait), 0);
        for (const TraceEvent& event : block.events) EXPECT_LE(event.begin_ns, event.end_ns);
      }
  }
}

// A rank waits for its own blocks then, and in the all-reduce for every rank.
TEST(EpTraceSimulated, WithoutAllToAllWaitsAreNamedByTheWorldsNumbers) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .tokens_per_rank = {4, 4, 4}};
  int num_waits = 0, num_waits_for_experts = 0, num_all_reduce_waits = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const RunOptions run{.protocol = seed % 2 == 0 ? Protocol::kSlotted : Protocol::kDirect,
                         .host = {.mode = EmulatorMode::kSimulated, .seed = seed},
                         .routing = Routing::kSkipAllToAll};
    EpHarness harness(shape, run);
    ASSERT_TRUE(harness.ep().enable_trace(1024).ok());
    harness.run_and_check(testing_support::as_run(make_step(shape, seed), run));
    const std::vector<RankTrace> ranks = must(harness.ep().take_trace());
    for (int rank = 0; rank < shape.n_ranks; ++rank)
      for (const BlockTrace& block : ranks[static_cast<size_t>(rank)].blocks) {
        EXPECT_EQ(std::count_if(block.events.begin(), block.events.end(),
                                [](const TraceEvent& event) {
                                  return event.phase == Phase::kAllReduce && event.name == TraceName::kReduce;
                                }),
                  1);
        for (const TraceEvent& event : block.events) {
          if (!is_wait(event.name)) continue;
          ++num_waits;
          num_all_reduce_waits += event.phase == Phase::kAllReduce;
          if (event.phase == Phase::kAllReduce) continue;
          EXPECT_EQ(event.late_rank, rank);
          if (event.expert < 0) continue;
          ++num_waits_for_experts;
          EXPECT_EQ(event.expert / 2, rank) << "expert " << event.expert;
        }
      }
  }
  EXPECT_GT(num_waits, num_all_reduce_waits);
  EXPECT_GT(num_waits_for_experts, 0);
  EXPECT_GT(num_all_reduce_waits, 0);
}

}  // namespace
}  // namespace switchyard
