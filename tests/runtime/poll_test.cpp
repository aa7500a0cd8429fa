// What an engine asks between steps, and before the first: poll(), warm_up(), deadlines, its own allocator.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "ep/step_runner.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

const Shape kShape{.n_ranks = 3, .n_experts = 6, .top_k = 3, .hidden = 64, .tokens_per_rank = {5, 5, 5}};

// Until poll() says something, or for longer than any test should take.
Status poll_until_error(ExpertParallel& ep, int rank) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  Status status;
  while (status.ok() && std::chrono::steady_clock::now() < end) {
    status = ep.poll(rank);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status;
}

class Poll : public testing::TestWithParam<std::tuple<TargetChoice, Protocol>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
};

INSTANTIATE_TEST_SUITE_P(Targets, Poll, testing::Combine(all_targets(), both_protocols()),
                         [](const auto& info) {
                           return target_name(std::get<0>(info.param)) +
                                  protocol_name(std::get<1>(info.param));
                         });

// Nobody waits for the replay: poll() alone tells every rank of it.
TEST_P(Poll, AStepThatBreaksInsideAGraphIsNotSilent) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  StepRunner runner(kShape, GetParam());
  const reference::Step step = make_step(kShape, 40);
  runner.upload(step);
  const auto graph = must(runner.world->capture([&] { return runner.enqueue_step(StepMode::kFused); }));
  ASSERT_TRUE(graph->launch().ok());
  ASSERT_TRUE(graph->synchronize().ok());
  for (int rank = 0; rank < kShape.n_ranks; ++rank) EXPECT_TRUE(runner.ep->poll(rank).ok());

  reference::Step broken = step;
  broken.topk_ids[1][0] = 77;
  runner.upload(broken);
  ASSERT_TRUE(graph->launch().ok());
  for (int rank = 0; rank < kShape.n_ranks; ++rank) {
    const Status status = poll_until_error(*runner.ep, rank);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("77"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find("was stopped") != std::string::npos, rank != 1) << status.message();
    EXPECT_EQ(runner.ep->poll(rank).message(), status.message());  // it stays
    EXPECT_EQ(runner.enqueue_dispatch(rank, StepMode::kFused).code(), StatusCode::kFailedPrecondition);
  }
  ASSERT_TRUE(runner.ep->reset().ok());
  EXPECT_TRUE(runner.ep->poll(1).ok());
  runner.upload(step);
  ASSERT_TRUE(graph->launch().ok());
  ASSERT_TRUE(runner.ep->synchronize().ok());
  runner.check(step);
}

TEST_P(Poll, DoesNotWaitForARankThatIsLate) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  StepRunner runner(kShape, GetParam());
  runner.upload(make_step(kShape, 41));
  ASSERT_TRUE(runner.enqueue_dispatch(0, StepMode::kFused).ok());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(runner.ep->poll(0).ok());
  EXPECT_TRUE(runner.ep->poll(1).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));  // the deadline is 20 s
  for (const int rank : {1, 2}) ASSERT_TRUE(runner.enqueue_dispatch(rank, StepMode::kFused).ok());
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(runner.enqueue_combine(rank, StepMode::kFused).ok());
  EXPECT_TRUE(runner.ep->synchronize().ok());
  EXPECT_EQ(runner.ep->poll(3).code(), StatusCode::kInvalidArgument);
}

TEST(PollOnHost, ASkippedStepIsSaidOnce) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto ep = must(ExpertParallel::create(*world, {.n_experts = 2,
                                                       .top_k = 1,
                                                       .hidden = 8,
                                                       .max_tokens_per_rank = 4,
                                                       .n_sms = 1,
                                                       .protocol = Protocol::kDirect,
                                                       .capacity_factor = 1}));
  std::vector<Buffer<bf16>> tokens, outputs;
  std::vector<Buffer<int32_t>> ids, expert_ids;
  std::vector<Buffer<uint32_t>> offsets;
  for (int rank = 0; rank < 2; ++rank) {
    Rank& owner = world->rank(rank);
    tokens.push_back(must(owner.allocate<bf16>(32)));
    outputs.push_back(must(owner.allocate<bf16>(32)));
    ids.push_back(must(owner.upload(std::vector<int32_t>(4, 0))));  // all to rank 0, which has room for half
    offsets.push_back(must(owner.allocate<uint32_t>(2)));
    expert_ids.push_back(must(owner.allocate<int32_t>(1)));
    ASSERT_TRUE(ep->dispatch(rank, {tokens.back().data(), ids.back().data(), 4},
                             {.row_offsets = offsets.back().data(), .expert_ids = expert_ids.back().data()})
                    .ok());
  }
  ASSERT_TRUE(world->synchronize().ok());
  EXPECT_EQ(ep->poll(0).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ep->poll(0).ok());
  EXPECT_EQ(ep->poll(1).code(), StatusCode::kResourceExhausted);
}

// In virtual time a rank that does not come costs nothing to wait for.
uint64_t waited_ns(ExpertParallel& ep, const World& world) {
  const auto offsets = must(world.rank(0).allocate<uint32_t>(3));
  const auto ids = must(world.rank(0).allocate<int32_t>(2));
  EXPECT_TRUE(ep.dispatch(0, {}, {.row_offsets = offsets.data(), .expert_ids = ids.data()}).ok());
  EXPECT_EQ(ep.synchronize(0).code(), StatusCode::kDeadlineExceeded);
  return ep.fault(0) ? ep.fault(0)->elapsed_ns : 0;
}

TEST(Deadlines, TheFirstStepHasAMinuteAndLaterOnesFiveSeconds) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  constexpr uint64_t kSecond = 1'000'000'000;
  const ExpertParallelConfig config{
      .n_experts = 4, .top_k = 1, .hidden = 8, .max_tokens_per_rank = 2, .n_sms = 1};
  const auto make = [&](const ExpertParallelConfig& wanted, bool warm, auto check) {
    const auto world = must(World::create(
        {.target = TargetChoice::kHost, .n_ranks = 2, .host = {.mode = EmulatorMode::kSimulated}}));
    const auto ep = must(ExpertParallel::create(*world, wanted));
    if (warm) {
      ASSERT_TRUE(ep->warm_up().ok());
    }
    check(waited_ns(*ep, *world));
  };
  make(config, false, [](uint64_t waited) { EXPECT_GE(waited, 60 * kSecond); });
  make(config, true, [](uint64_t waited) {
    EXPECT_GE(waited, 5 * kSecond);
    EXPECT_LT(waited, 50 * kSecond);
  });
  ExpertParallelConfig impatient = config;
  impatient.timeout_ns = kSecond;
  make(impatient, false, [](uint64_t waited) { EXPECT_LT(waited, 5 * kSecond); });
  impatient.first_timeout_ns = 20 * kSecond;
  make(impatient, false, [](uint64_t waited) { EXPECT_GE(waited, 20 * kSecond); });
  make(impatient, true, [](uint64_t waited) { EXPECT_LT(waited, 20 * kSecond); });
  impatient.first_timeout_ns = UINT64_MAX;
  const auto world = must(World::create({.target = TargetChoice::kHost}));
  EXPECT_NE(ExpertParallel::create(*world, impatient).status().message().find("first_timeout_ns is 184467"),
            std::string::npos);
}

TEST(WarmUp, WorksPerRank) {
  StepRunner runner(kShape, {TargetChoice::kHost, Protocol::kDirect},
                    StepRunner::Launch{.row_layout = RowLayout::kPerRank});
  const Status status = runner.ep->warm_up();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_P(Poll, WarmUpIsAStepThatLeavesNothing) {
  StepRunner runner(kShape, GetParam(), StepRunner::Launch{.counts_experts = true});
  ASSERT_TRUE(runner.ep->warm_up().ok());
  for (const int64_t count : must(runner.ep->expert_counts(0))) EXPECT_EQ(count, 0);
  const reference::Step step = make_step(kShape, 42);
  runner.upload(step);
  ASSERT_TRUE(runner.enqueue_dispatch(0, StepMode::kFused).ok());
  const Status amid = runner.ep->warm_up();
  EXPECT_EQ(amid.code(), StatusCode::kFailedPrecondition) << amid.to_string();
  for (const int rank : {1, 2}) ASSERT_TRUE(runner.enqueue_dispatch(rank, StepMode::kFused).ok());
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(runner.enqueue_combine(rank, StepMode::kFused).ok());
  ASSERT_TRUE(runner.ep->synchronize().ok());
  runner.check(step);
}

TEST(WarmUp, WithoutAllToAllItReducesToo) {
  const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  for (const int group : {0, 1}) {
    const auto ep = must(ExpertParallel::create(*world, {.n_experts = 4,
                                                         .top_k = 1,
                                                         .hidden = 8,
                                                         .max_tokens_per_rank = 2,
                                                         .n_sms = 1,
                                                         .routing = Routing::kSkipAllToAll,
                                                         .allreduce_world_size = group}));
    const Status status = ep->warm_up();
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

// Memory of the host, as an engine's allocator would hand it out.
struct Allocator {
  std::mutex mutex;
  std::map<void*, uint64_t> live;
  uint64_t num_allocations = 0;

  MemoryFunctions functions() {
    return {[this](uint64_t bytes, int, StreamHandle) {
              void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
              std::memset(memory, 0xee, bytes);  // the library zeroes it
              std::lock_guard lock(mutex);
              live[memory] = bytes;
              ++num_allocations;
              return memory;
            },
            [this](void* memory, uint64_t bytes, int, StreamHandle) {
              std::lock_guard lock(mutex);
              EXPECT_EQ(live.at(memory), bytes);
              live.erase(memory);
              std::free(memory);
            }};
  }
};

TEST(CallersMemory, EverythingComesFromItAndGoesBack) {
  Allocator allocator;
  for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect}) {
    {
      const auto world =
          must(World::create({.target = TargetChoice::kHost, .n_ranks = 2, .memory = allocator.functions()}));
      const auto ep = must(ExpertParallel::create(*world, {.n_experts = 4,
                                                           .top_k = 1,
                                                           .hidden = 8,
                                                           .max_tokens_per_rank = 2,
                                                           .n_sms = 1,
                                                           .protocol = protocol}));
      const RowBuffers rows = must(ep->row_buffers(1));
      const auto is_in = [&](const void* memory) {
        return std::any_of(allocator.live.begin(), allocator.live.end(), [&](const auto& piece) {
          return memory >= piece.first && memory < static_cast<const std::byte*>(piece.first) + piece.second;
        });
      };
      EXPECT_TRUE(is_in(rows.rows));
      const auto buffer = must(world->rank(0).allocate<int>(10));
      EXPECT_TRUE(is_in(buffer.data()));
      EXPECT_EQ(must(buffer.download()), std::vector<int>(10));
      EXPECT_TRUE(ep->warm_up().ok());
    }
    EXPECT_TRUE(allocator.live.empty()) << allocator.live.size() << " of " << allocator.num_allocations;
  }
}

// The buffer is freed behind a launch that the end of the world cuts short.
TEST(CallersMemory, AWorldThatGoesWhileKernelsRunGivesItBack) {
  Allocator allocator;
  {
    const auto world = must(World::create({.target = TargetChoice::kHost, .memory = allocator.functions()}));
    const Rank& rank = world->rank(0);
    const auto buffer = must(rank.allocate<int>(10));
    ASSERT_TRUE(
        rank.launch(kernel_table(rank).stall, {.num_blocks = 1, .num_threads = 32}, {60'000'000'000}).ok());
  }
  EXPECT_TRUE(allocator.live.empty());
}

TEST(CallersMemory, WhatItRefusesIsAnError) {
  const auto status_with = [](const MemoryFunctions& memory) {
    const Result<std::unique_ptr<World>> world =
        World::create({.target = TargetChoice::kHost, .memory = memory});
    return world.ok() ? world.value()->rank(0).allocate<int>(3).status() : world.status();
  };
  const auto expect = [](const Status& status, StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  const auto ignore = [](void*, uint64_t, int, StreamHandle) {};
  alignas(256) static char space[512];
  expect(status_with({[](uint64_t, int, StreamHandle) { return nullptr; }, ignore}),
         StatusCode::kResourceExhausted, "12 bytes: the caller's allocate() returned null");
  expect(status_with(
             {[](uint64_t, int, StreamHandle) -> void* { throw std::runtime_error("no more"); }, ignore}),
         StatusCode::kResourceExhausted, "threw: no more");
  expect(status_with({[](uint64_t, int, StreamHandle) { return static_cast<void*>(space + 16); }, ignore}),
         StatusCode::kInvalidArgument, "aligned to 256");
  expect(status_with({[](uint64_t, int, StreamHandle) { return static_cast<void*>(space); }, {}}),
         StatusCode::kInvalidArgument, "memory has allocate only");
}

}  // namespace
}  // namespace switchyard
