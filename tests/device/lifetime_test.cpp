// Whatever owns memory that kernels use waits for them before it frees it: objects may be dropped at any
// time, as an early return does.
#include <gtest/gtest.h>

#include "ep/step_runner.hpp"
#include "runtime/layer_harness.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class Lifetime : public testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Targets, Lifetime, testing_support::all_targets(),
                         [](const auto& info) { return testing_support::target_name(info.param); });

// Long enough that what is dropped behind it is dropped while it waits to run.
Status enqueue_stall(Rank& rank, Stream stream = {}) {
  return rank.launch_on(stream, kernel_table(rank).stall, {}, StallParams{30'000'000});
}

AttentionShape small_attention() {
  return {.head_dim = 64,
          .batch_size = 1,
          .max_query_len = 64,
          .max_key_len = 64,
          .num_query_rows = 64,
          .num_key_rows = 64,
          .causal = true};
}

TEST_P(Lifetime, BuffersDroppedUnderADispatchAreFreedBehindIt) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 64, .tokens_per_rank = {5, 5}};
  for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect}) {
    StepRunner runner(shape, {GetParam(), protocol});
    runner.upload(make_step(shape, 3));
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(enqueue_stall(runner.world->rank(rank)).ok());
    ASSERT_TRUE(runner.enqueue_step(StepMode::kFused).ok());
  }  // the buffers, then the steps they belong to, then the world
}

// Rank 0 waits for rank 1, which this thread has yet to launch: it must not wait for rank 0 here.
TEST_P(Lifetime, ABufferMayBeDroppedBetweenTheLaunchesOfTwoRanks) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 64, .tokens_per_rank = {5, 5}};
  for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect}) {
    StepRunner runner(shape, {GetParam(), protocol});
    const reference::Step step = make_step(shape, 3);
    runner.upload(step);
    std::vector<Buffer<bf16>> dropped;
    for (int rank = 0; rank < 2; ++rank)
      dropped.push_back(must(runner.world->rank(rank).allocate<bf16>(1000)));
    ASSERT_TRUE(runner.enqueue_dispatch(0, StepMode::kFused).ok());
    dropped.clear();
    ASSERT_TRUE(runner.enqueue_dispatch(1, StepMode::kFused).ok());
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(runner.enqueue_combine(rank, StepMode::kFused).ok());
    const Status status = runner.ep->synchronize();
    ASSERT_TRUE(status.ok()) << status.to_string();
    runner.check(step);
  }
}

TEST_P(Lifetime, ABufferIsThereUntilItsStreamHasRead) {
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  Buffer<bf16> output = must(rank.allocate<bf16>(64 * 64));
  {
    const std::unique_ptr<Attention> attention = must(Attention::create(rank, small_attention()));
    const Buffer<bf16> input = must(rank.upload(std::vector<bf16>(64 * 64, to_bf16(2.0f))));
    ASSERT_TRUE(enqueue_stall(rank).ok());
    ASSERT_TRUE(attention
                    ->run({.queries = input.data(),
                           .keys = input.data(),
                           .values = input.data(),
                           .output = output.data()})
                    .ok());
  }  // the input, then the attention, with the launch still to come
  for (const bf16 value : must(output.download())) ASSERT_EQ(to_float(value), 2.0f);
}

TEST_P(Lifetime, AnAttentionWaitsForItsLaunches) {
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  const Buffer<bf16> input = must(rank.upload(std::vector<bf16>(64 * 64, to_bf16(2.0f))));
  const Buffer<bf16> output = must(rank.allocate<bf16>(64 * 64));
  const Buffer<uint32_t> offsets = must(rank.upload(std::vector<uint32_t>{0, 64}));
  std::unique_ptr<Attention> attention = must(Attention::create(rank, small_attention()));
  ASSERT_TRUE(enqueue_stall(rank).ok());
  ASSERT_TRUE(attention
                  ->run({.queries = input.data(),
                         .keys = input.data(),
                         .values = input.data(),
                         .output = output.data(),
                         .query_offsets = offsets.data(),
                         .key_offsets = offsets.data()})
                  .ok());
  attention.reset();
  for (const bf16 value : must(output.download())) ASSERT_EQ(to_float(value), 2.0f);
}

// On a stream of the caller's the destructor waits itself: the download waits for the rank's stream only.
TEST_P(Lifetime, AMatmulWaitsForItsLaunches) {
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  const Buffer<bf16> rows = must(rank.upload(std::vector<bf16>(64 * 64, to_bf16(2.0f))));
  const Buffer<bf16> weights = must(rank.upload(std::vector<bf16>(64 * 64, to_bf16(0.5f))));
  const Buffer<uint32_t> offsets = must(rank.upload(std::vector<uint32_t>{0, 64}));
  for (const Stream stream : {Stream(), must(rank.create_stream())}) {
    const Buffer<bf16> output = must(rank.allocate<bf16>(64 * 64));
    std::unique_ptr<GroupedMatmul> matmul =
        must(GroupedMatmul::create(rank, {.inner = 64, .columns = 64, .max_rows = 64}));
    ASSERT_TRUE(enqueue_stall(rank, stream).ok());
    ASSERT_TRUE(matmul
                    ->run({.rows = rows.data(),
                           .weights = weights.data(),
                           .output = output.data(),
                           .row_offsets = offsets.data()},
                          stream)
                    .ok());
    matmul.reset();
    for (const bf16 value : must(output.download())) ASSERT_EQ(to_float(value), 64.0f);
  }
}

// The same of a layer, whose exchange and rows go with it.
TEST_P(Lifetime, ALayerWaitsForItsSteps) {
  for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect})
    for (const bool has_callers_streams : {false, true}) {
      const auto world = must(World::create({.target = GetParam(), .n_ranks = 2}));
      LayerHarness harness(*world, {.n_ranks = 2, .protocol = protocol, .has_router = true});
      std::vector<Stream> streams(2);
      for (int rank = 0; rank < 2; ++rank) {
        Stream& stream = streams[static_cast<size_t>(rank)];
        if (has_callers_streams) stream = must(world->rank(rank).create_stream());
        ASSERT_TRUE(enqueue_stall(world->rank(rank), stream).ok());
      }
      ASSERT_TRUE(harness.enqueue(streams).ok());
      harness.drop_layer();
      EXPECT_EQ(harness.compare(), "") << to_string(protocol);
    }
}

TEST_P(Lifetime, AGraphWaitsForItsLastLaunch) {
  if (GetParam() == TargetChoice::kCuda) GTEST_SKIP() << "memory of a GPU is not read without a wait";
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  const Buffer<bf16> input = must(rank.upload(std::vector<bf16>(64 * 64, to_bf16(2.0f))));
  const Buffer<bf16> output = must(rank.allocate<bf16>(64 * 64));
  const std::unique_ptr<Attention> attention = must(Attention::create(rank, small_attention()));
  std::unique_ptr<Graph> graph = must(world->capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(enqueue_stall(rank));
    return attention->run(
        {.queries = input.data(), .keys = input.data(), .values = input.data(), .output = output.data()});
  }));
  ASSERT_TRUE(graph->launch().ok());
  graph.reset();
  // Read without waiting for the stream: the graph has.
  for (size_t i = 0; i < output.size(); ++i) ASSERT_EQ(to_float(output.data()[i]), 2.0f);
  ASSERT_TRUE(world->synchronize().ok());
}

TEST_P(Lifetime, ABufferDroppedInsideACaptureSpoilsNothing) {
  const auto world = must(World::create({.target = GetParam()}));
  Rank& rank = world->rank(0);
  Buffer<bf16> dropped = must(rank.allocate<bf16>(64 * 64));
  ASSERT_TRUE(enqueue_stall(rank).ok());
  const auto graph = world->capture([&] {
    dropped = {};
    return enqueue_stall(rank);
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_TRUE(graph.value()->launch().ok());
  EXPECT_TRUE(world->synchronize().ok());
}

TEST_P(Lifetime, AWorldMayGoWhileKernelsRun) {
  auto world = must(World::create({.target = GetParam(), .n_ranks = 2}));
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(enqueue_stall(world->rank(rank)).ok());
  world.reset();
}

TEST_P(Lifetime, ARankThatIsNotThereIsNamed) {
  const auto world = must(World::create({.target = GetParam(), .n_ranks = 2}));
  for (const int index : {-1, 2, 99}) {
    try {
      (void)world->rank(index);
      ADD_FAILURE() << index;
    } catch (const std::out_of_range& error) {
      EXPECT_EQ(std::string(error.what()),
                "World::rank: index is " + std::to_string(index) + "; it must be 0..1");
    }
  }
}

}  // namespace
}  // namespace switchyard
