// Two threads in one step: the second is refused, and nothing else happens.
#include "runtime/ep/rank_call.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ep/ep_harness.hpp"

namespace switchyard {
namespace {

using testing_support::must;

TEST(RankCalls, ASecondOneIsRefusedUntilTheFirstEnds) {
  std::atomic<const char*> under_way = nullptr;
  {
    const RankCall first(under_way, 3, "dispatch");
    EXPECT_TRUE(first.status().ok());
    {
      const RankCall second(under_way, 3, "combine");
      EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
      EXPECT_EQ(second.status().message(),
                "combine: another thread is in dispatch of rank 3; calls for one rank must not overlap");
    }
    EXPECT_FALSE(RankCall(under_way, 3, "combine").status().ok()) << "a refused call ends no other";
  }
  RankCall moved = RankCall(under_way, 3, "combine");
  EXPECT_TRUE(RankCall(std::move(moved)).status().ok());
  EXPECT_EQ(under_way, nullptr);
}

// Under ThreadSanitizer it also says that a refused call reads nothing of what the other one writes.
TEST(RankCalls, ThreadsInOneStepAreRefusedAndTheStepIsWhole) {
  const auto world = must(World::create({.target = TargetChoice::kHost}));
  const auto ep = must(ExpertParallel::create(*world, {.n_experts = 2,
                                                       .top_k = 1,
                                                       .hidden = 64,
                                                       .max_tokens_per_rank = 4,
                                                       .n_sms = 1,
                                                       .protocol = Protocol::kDirect}));
  constexpr int kThreads = 4, kCalls = 200;
  Buffer<uint32_t> offsets = must(world->rank(0).allocate<uint32_t>(3));
  Buffer<int32_t> expert_ids = must(world->rank(0).allocate<int32_t>(2));
  ASSERT_TRUE(ep->row_buffers(0).ok());
  std::atomic<int> num_dispatched = 0, num_abandoned = 0, num_strange = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      const auto count = [&](const Status& status, std::atomic<int>& of_call) {
        of_call += status.ok();
        num_strange += !status.ok() && status.code() != StatusCode::kFailedPrecondition;
      };
      for (int call = 0; call < kCalls; ++call) {
        count(ep->dispatch(0, {}, {.row_offsets = offsets.data(), .expert_ids = expert_ids.data()}),
              num_dispatched);
        count(ep->abandon_step(0), num_abandoned);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_strange, 0);
  EXPECT_GT(num_dispatched, 0);
  const bool is_open = num_dispatched > num_abandoned;
  EXPECT_EQ(ep->abandon_step(0).ok(), is_open);
  EXPECT_TRUE(ep->synchronize().ok());
}

}  // namespace
}  // namespace switchyard
