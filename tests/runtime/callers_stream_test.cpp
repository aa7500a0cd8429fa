// Calls on streams of the caller's, on every target: what runs there, what waits for it, and which streams
// are refused.
#include <thread>

#include "ep/step_runner.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

const Shape kShape{.n_ranks = 3, .n_experts = 6, .top_k = 3, .hidden = 64, .tokens_per_rank = {5, 5, 5}};
constexpr StepMode kModes[] = {StepMode::kSplit, StepMode::kFused};

class CallersStream : public testing::TestWithParam<std::tuple<TargetChoice, Protocol>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }

  static void give_streams(StepRunner& runner) {
    for (int rank = 0; rank < kShape.n_ranks; ++rank)
      runner.streams.push_back(must(runner.world->rank(rank).create_stream()));
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, CallersStream, testing::Combine(all_targets(), both_protocols()),
                         [](const auto& info) {
                           return target_name(std::get<0>(info.param)) +
                                  protocol_name(std::get<1>(info.param));
                         });

TEST_P(CallersStream, StepsRunOnItAndTheRanksOwnStreamIsLeftAlone) {
  StepRunner runner(kShape, GetParam());
  give_streams(runner);
  for (const StepMode mode : kModes) {
    const reference::Step step = make_step(kShape, 30);
    runner.upload(step);
    // Nothing ends on the ranks' own streams for a while. All ranks share one stall's time.
    constexpr uint64_t kStallNs = 400'000'000;
    const Rank& stalled = runner.world->rank(1);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(
        stalled.launch(kernel_table(stalled).stall, {.num_blocks = 1, .num_threads = 32}, {kStallNs}).ok());
    ASSERT_TRUE(runner.enqueue_step(mode).ok());
    for (int rank = 0; rank < kShape.n_ranks; ++rank)
      ASSERT_TRUE(runner.world->rank(rank).synchronize(runner.streams[static_cast<size_t>(rank)]).ok());
    const std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - begin;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // under which a step may take as long
    EXPECT_LT(elapsed.count(), static_cast<int64_t>(kStallNs)) << "the step waited for the rank's own stream";
#endif
    (void)elapsed;
    ASSERT_TRUE(runner.ep->synchronize().ok());
    runner.check(step);
  }
}

// synchronize() without a stream knows that the rank's own is not the one.
TEST_P(CallersStream, WhatWaitsForARankWaitsForItsCalls) {
  StepRunner runner(kShape, GetParam(), StepRunner::Launch{.counts_experts = true});
  give_streams(runner);
  const reference::Step step = make_step(kShape, 31);
  runner.upload(step);
  int64_t num_rows = 0;
  for (int rank = 0; rank < kShape.n_ranks; ++rank) {
    const Rank& here = runner.world->rank(rank);
    ASSERT_TRUE(here.launch_on(runner.stream_of(rank), kernel_table(here).stall,
                               {.num_blocks = 1, .num_threads = 32}, {20'000'000})
                    .ok());
  }
  ASSERT_TRUE(runner.enqueue_step(StepMode::kFused).ok());
  for (const int64_t count : must(runner.ep->expert_counts(0))) num_rows += count;
  EXPECT_EQ(num_rows,
            std::count_if(step.topk_ids[0].begin(), step.topk_ids[0].end(), [](int id) { return id >= 0; }));
  for (int rank = 0; rank < kShape.n_ranks; ++rank) ASSERT_TRUE(runner.ep->synchronize(rank).ok());
  runner.check(step);
  // The destructor waits, too: no kernel may find its memory gone.
  ASSERT_TRUE(runner.enqueue_step(StepMode::kSplit).ok());
  runner.ep.reset();
}

TEST_P(CallersStream, OneThreadForEachRank) {
  StepRunner runner(kShape, GetParam());
  give_streams(runner);
  const reference::Step step = make_step(kShape, 32);
  runner.upload(step);
  std::vector<Status> results(static_cast<size_t>(kShape.n_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kShape.n_ranks; ++rank)
    threads.emplace_back([&, rank] {
      Status& result = results[static_cast<size_t>(rank)];
      for (int i = 0; i < 10 && result.ok(); ++i) {
        result = runner.enqueue_dispatch(rank, kModes[i % 2]);
        if (result.ok()) result = runner.enqueue_combine(rank, kModes[i % 2]);
        if (result.ok()) result = runner.ep->poll(rank);
        if (result.ok() && i % 4 == 3) result = runner.ep->synchronize(rank, runner.stream_of(rank));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.to_string();
  ASSERT_TRUE(runner.ep->synchronize().ok());
  runner.check(step);
}

TEST_P(CallersStream, OneThreadForAllRanksAndSomeOfThemOnTheirOwnStreams) {
  StepRunner runner(kShape, GetParam());
  runner.streams = {Stream(), must(runner.world->rank(1).create_stream()), Stream()};
  for (uint64_t seed = 33; seed < 36; ++seed) {
    const reference::Step step = make_step(kShape, seed);
    runner.upload(step);
    ASSERT_TRUE(runner.enqueue_step(kModes[seed % 2]).ok());
    ASSERT_TRUE(runner.ep->synchronize().ok());
    runner.check(step);
  }
}

TEST(CallersStreamOnHost, AStreamThatIsNotOfTheWorldIsRefused) {
  StepRunner runner(kShape, {TargetChoice::kHost, Protocol::kDirect});
  const auto other = must(World::create({.target = TargetChoice::kHost}));
  int no_stream = 0;
  for (const Stream stream : {must(other->rank(0).create_stream()), Stream(&no_stream), Stream(nullptr)}) {
    runner.streams.assign(3, stream);
    const Status status = runner.enqueue_dispatch(0, StepMode::kFused);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("Rank::create_stream()"), std::string::npos) << status.message();
    EXPECT_EQ(runner.ep->synchronize(0, stream).code(), StatusCode::kInvalidArgument);
  }
  runner.streams.clear();  // nothing was enqueued: the right calls may follow
  const reference::Step step = make_step(kShape, 36);
  runner.upload(step);
  ASSERT_TRUE(runner.enqueue_step(StepMode::kFused).ok());
  ASSERT_TRUE(runner.ep->synchronize().ok());
  runner.check(step);
}

class KernelOnCallersStream : public testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Targets, KernelOnCallersStream, all_targets(),
                         [](const auto& info) { return target_name(info.param); });

// Per rank, kernels go in front of a dispatch and behind it. If they went to the rank's own stream, the first
// would come late where that is stalled, and the second too early where the caller's is.
TEST_P(KernelOnCallersStream, TheKernelsAroundADispatchPerRankRunThere) {
  StepRunner runner(kShape, {GetParam(), Protocol::kDirect},
                    StepRunner::Launch{.row_layout = RowLayout::kPerRank});
  using Results = std::vector<std::pair<std::vector<int32_t>, std::vector<bf16>>>;
  const auto run = [&](uint64_t seed, StepMode mode, const std::vector<Stream>& stalled = {}) {
    runner.upload(make_step(kShape, seed));
    for (size_t i = 0; i < stalled.size(); ++i) {
      const Rank& here = runner.world->rank(static_cast<int>(i));
      EXPECT_TRUE(here.launch_on(stalled[i], kernel_table(here).stall, {.num_blocks = 1, .num_threads = 32},
                                 {50'000'000})
                      .ok());
    }
    EXPECT_TRUE(runner.enqueue_step(mode).ok());
    EXPECT_TRUE(runner.ep->synchronize().ok());
    Results results;
    for (int rank = 0; rank < kShape.n_ranks; ++rank)
      results.emplace_back(must(runner.row_experts_of(rank).download()),
                           must(runner.output_of(rank).download()));
    return results;
  };
  const Results expected = run(39, StepMode::kFused);
  std::vector<Stream> streams;
  for (int rank = 0; rank < kShape.n_ranks; ++rank)
    streams.push_back(must(runner.world->rank(rank).create_stream()));
  for (const StepMode mode : kModes)
    for (const auto& stalled : {std::vector<Stream>(3), streams}) {
      runner.streams.clear();
      EXPECT_NE(run(40, mode), expected);  // else what it leaves would do
      runner.streams = streams;
      EXPECT_EQ(run(39, mode, stalled), expected);
    }
}

// Inputs are uploaded by a stream that nothing else uses; outputs are downloaded when the other one is idle.
TEST_P(KernelOnCallersStream, AMatmulGivesTheSameThere) {
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  constexpr size_t kRows = 16, kInner = 64, kColumns = 64;
  std::vector<bf16> values;
  for (size_t i = 0; i < kRows * kInner; ++i) values.push_back(to_bf16(static_cast<float>(i % 13) - 6));
  std::vector<bf16> weights;
  for (size_t i = 0; i < kColumns * kInner; ++i) weights.push_back(to_bf16(static_cast<float>(i % 7) - 3));
  const auto rows = must(rank.upload(values)), weight = must(rank.upload(weights));
  const auto offsets = must(rank.upload(std::vector<uint32_t>{0, kRows}));
  const auto matmul =
      must(GroupedMatmul::create(rank, {.inner = kInner, .columns = kColumns, .max_rows = kRows}));
  std::vector<std::vector<bf16>> outputs;
  for (const Stream stream : {Stream(), must(rank.create_stream())}) {
    const auto output = must(rank.allocate<bf16>(kRows * kColumns));
    ASSERT_TRUE(matmul
                    ->run({.rows = rows.data(),
                           .weights = weight.data(),
                           .output = output.data(),
                           .row_offsets = offsets.data()},
                          stream)
                    .ok());
    ASSERT_TRUE(rank.synchronize(stream).ok());
    outputs.push_back(must(output.download()));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_NE(outputs[0], std::vector<bf16>(kRows * kColumns));
}

TEST_P(KernelOnCallersStream, AttentionGivesTheSameThere) {
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  constexpr size_t kTokens = 40, kHeadDim = 64;
  std::vector<bf16> values;
  for (size_t i = 0; i < kTokens * kHeadDim; ++i)
    values.push_back(to_bf16(static_cast<float>(i % 11) / 8 - 0.5f));
  const auto input = must(rank.upload(values));
  const auto attention = must(Attention::create(rank, {.head_dim = kHeadDim,
                                                       .max_query_len = kTokens,
                                                       .max_key_len = kTokens,
                                                       .num_query_rows = kTokens,
                                                       .num_key_rows = kTokens,
                                                       .causal = true}));
  std::vector<std::vector<bf16>> outputs;
  for (const Stream stream : {Stream(), must(rank.create_stream())}) {
    const auto output = must(rank.allocate<bf16>(kTokens * kHeadDim));
    ASSERT_TRUE(attention->run({input.data(), input.data(), input.data(), output.data()}, stream).ok());
    ASSERT_TRUE(rank.synchronize(stream).ok());
    outputs.push_back(must(output.download()));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_NE(outputs[0], std::vector<bf16>(kTokens * kHeadDim));
}

}  // namespace
}  // namespace switchyard
