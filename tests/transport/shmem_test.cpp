// The shmem transport over a SHMEM whose PEs are threads: the order of the wire thread's queue, agreements
// with a deadline, worlds whose ranks reach each other only over the wire, and what is refused.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "ep/ep_harness.hpp"
#include "fake_shmem.hpp"
#include "reference/traffic.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "transport/deadline.hpp"
#include "transport/shmem/shmem_plugin.hpp"

namespace switchyard {
namespace {

using testing_support::as_run;
using testing_support::EpHarness;
using testing_support::FakeShmem;
using testing_support::in_threads;
using testing_support::make_step;
using testing_support::must;
using testing_support::RunOptions;
using testing_support::Shape;

constexpr uint64_t kSecond = 1'000'000'000;

Result<std::unique_ptr<World>> join(const FakeShmem& shmem, uint64_t timeout_ns = 20 * kSecond) {
  const TestHooks hooks{.shmem = &shmem.api()};
  JoinOptions options;
  options.transport = TransportChoice::kShmem;
  options.target = TargetChoice::kHost;
  options.host.num_workers = 1;
  options.host.hooks = &hooks;
  options.timeout_ns = timeout_ns;
  return World::join(options);
}

using Variant = std::tuple<int, Protocol>;
class ShmemSteps : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(Groups, ShmemSteps,
                         ::testing::Combine(::testing::Values(1, 2, 4), testing_support::both_protocols()),
                         [](const ::testing::TestParamInfo<Variant>& info) {
                           return "Groups" + std::to_string(std::get<0>(info.param)) +
                                  testing_support::protocol_name(std::get<1>(info.param));
                         });

// Ranks of one group have pointers to each other's memory; the groups are found out.
TEST_P(ShmemSteps, ResultsAreThoseOfTheReference) {
  const auto [group, protocol] = GetParam();
  const FakeShmem shmem({.n_pes = 4, .group = group});
  const Shape shape{.n_ranks = 4, .n_experts = 8, .top_k = 3, .tokens_per_rank = {7, 0, 12, 5}};
  const RunOptions run{.protocol = protocol, .timeout_ns = 60 * kSecond};
  in_threads(4, [&](int) {
    EpHarness harness(must(join(shmem)), shape, run);
    for (uint64_t i = 0; i < 2; ++i)
      EXPECT_EQ(harness.run_and_compare(as_run(make_step(shape, 100 + i), run)), "");
  });
  EXPECT_EQ(shmem.num_finalized(), 4);
  EXPECT_EQ(shmem.num_abandoned(), 0);
}

// What `run` and `bench ep` count from the routing of a step is what its kernels put.
TEST(ShmemTraffic, IsAsCountedFromTheRouting) {
  const Shape shape{
      .n_ranks = 4, .n_experts = 8, .top_k = 3, .hidden = 128, .tokens_per_rank = {7, 0, 12, 5}};
  struct Case {
    Protocol protocol;
    RowDelivery row_delivery = RowDelivery::kSender;
    TokenFormatKind format = TokenFormatKind::kBF16;
    bool reduce_at_owner = false;
  };
  constexpr RowDelivery kReceiver = RowDelivery::kReceiver, kSender = RowDelivery::kSender;
  for (const auto& [protocol, row_delivery, format, reduce_at_owner] :
       {Case{Protocol::kSlotted}, Case{Protocol::kSlotted, kSender, TokenFormatKind::kFP8},
        Case{Protocol::kDirect}, Case{Protocol::kDirect, kSender, TokenFormatKind::kFP8},
        Case{Protocol::kDirect, kReceiver}, Case{Protocol::kDirect, kReceiver, TokenFormatKind::kFP8},
        Case{Protocol::kDirect, kSender, TokenFormatKind::kBF16, true},
        Case{Protocol::kDirect, kReceiver, TokenFormatKind::kFP8, true}}) {
    const RunOptions run{.protocol = protocol,
                         .row_delivery = row_delivery,
                         .reduce_at_owner = reduce_at_owner,
                         .format = format,
                         .timeout_ns = 60 * kSecond};
    const reference::Step step = as_run(make_step(shape, 100), run);
    const FakeShmem shmem({.n_pes = 4, .group = 1});
    reference::StepTraffic expected;
    in_threads(4, [&](int i) {
      EpHarness harness(must(join(shmem)), shape, run);
      if (i == 0) expected = count_traffic(step, reference::traffic_options(harness.ep()));
      EXPECT_EQ(harness.run_and_compare(step), "");
    });
    // To each other rank goes a row of counts, which the traffic is said not to hold: a cell per two experts.
    const uint64_t counts = protocol == Protocol::kDirect ? (4 - 1) * (8 / 2) * sizeof(uint64_t) : 0;
    for (int rank = 0; rank < 4; ++rank) {
      const auto r = static_cast<size_t>(rank);
      EXPECT_EQ(shmem.bytes_put_beside_mailbox(rank),
                expected.dispatch.to_other_groups[r] + expected.combine.to_other_groups[r] + counts)
          << to_string(protocol) << ", rows of the " << to_string(row_delivery) << ", " << to_string(format)
          << (reduce_at_owner ? ", reduced at the owner" : "") << ", rank " << rank;
    }
  }
}

ExpertParallelConfig small_config() {
  return {.n_experts = 4, .top_k = 2, .hidden = 64, .max_tokens_per_rank = 4, .timeout_ns = kSecond / 2};
}

TEST(ShmemWorld, SaysWhichRanksItHas) {
  const FakeShmem shmem({.n_pes = 2});
  std::atomic<int> sum_of_ranks = 0;
  in_threads(2, [&](int) {
    const auto world = must(join(shmem));
    EXPECT_EQ(world->n_ranks(), 2);
    ASSERT_EQ(world->local_ranks().size(), 1u);
    EXPECT_STREQ(world->transport_name(), "shmem");
    const int rank = world->local_ranks().front();
    sum_of_ranks += rank;
    const auto all = must(world->all_gather(Bytes(3, static_cast<std::byte>(rank))));
    for (int other = 0; other < 2; ++other)
      EXPECT_EQ(all[static_cast<size_t>(other)], Bytes(3, static_cast<std::byte>(other)));
  });
  EXPECT_EQ(sum_of_ranks, 1);
}

// Processes that no launcher has started, but that have an all-gather of their own; `said` is what they gave
// it.
class CallersGather {
 public:
  explicit CallersGather(size_t num_processes) : num_processes_(num_processes) {}
  Result<std::vector<Bytes>> operator()(const Bytes& mine) {
    std::unique_lock lock(mutex_);
    said_.push_back(mine);
    changed_.notify_all();
    changed_.wait(lock, [&] { return said_.size() >= num_processes_; });
    return said_;
  }

 private:
  const size_t num_processes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Bytes> said_;
};

Result<std::unique_ptr<World>> join_without_launcher(const FakeShmem& shmem, int rank, int n_ranks,
                                                     CallersGather& gather) {
  const TestHooks hooks{.shmem = &shmem.api()};
  JoinOptions options;
  options.transport = TransportChoice::kShmem;
  options.target = TargetChoice::kHost;
  options.rank = rank;
  options.n_ranks = n_ranks;
  options.host.num_workers = 1;
  options.host.hooks = &hooks;
  options.all_gather = [&](const Bytes& mine) { return gather(mine); };
  return World::join(options);
}

TEST(ShmemWorld, AnAllGatherOfTheCallersStandsInForALauncher) {
  const FakeShmem shmem({.n_pes = 3});
  CallersGather gather(3);
  in_threads(3, [&](int i) {
    const auto world = must(join_without_launcher(shmem, 2 - i, 3, gather));
    EXPECT_EQ(world->local_ranks(), std::vector<int>{2 - i});
    EXPECT_EQ(world->n_ranks(), 3);
    EXPECT_TRUE(world->all_gather(Bytes(1)).ok());
  });
  EXPECT_EQ(shmem.num_finalized(), 3);
}

TEST(ShmemWorld, WhatIsWrongWithoutALauncherIsToldToAll) {
  const auto messages = [](const FakeShmem& shmem, const std::vector<int>& ranks, int n_ranks_of_last) {
    CallersGather gather(ranks.size());
    std::vector<std::string> all(ranks.size());
    in_threads(static_cast<int>(ranks.size()), [&](int i) {
      const bool is_last = i + 1 == static_cast<int>(ranks.size());
      all[static_cast<size_t>(i)] =
          join_without_launcher(shmem, ranks[static_cast<size_t>(i)], is_last ? n_ranks_of_last : 2, gather)
              .status()
              .message();
    });
    return all;
  };
  const FakeShmem sound({.n_pes = 2});
  for (const std::string& message : messages(sound, {1, 1}, 2))
    EXPECT_EQ(message, "two processes are rank 1");
  for (const std::string& message : messages(sound, {0, 1}, 3))
    EXPECT_NE(message.find("n_ranks is "), std::string::npos) << message;
}

TEST(ShmemWorld, AnIdThatCannotBeMadeIsToldToAll) {
  const FakeShmem without_ids({.n_pes = 2, .makes_ids = false});
  CallersGather gather(2);
  in_threads(2, [&](int i) {
    EXPECT_EQ(join_without_launcher(without_ids, i, 2, gather).status().message(),
              "rank 0: the fake SHMEM: no id today");
  });
}

TEST(ShmemWorld, AGroupThatMemoryDoesNotSpanIsRefused) {
  const FakeShmem shmem({.n_pes = 4, .group = 2});
  in_threads(4, [&](int) {
    const auto world = must(join(shmem));
    ExpertParallelConfig config = small_config();
    config.p2p_world_size = 4;
    EXPECT_EQ(ExpertParallel::create(*world, config).status().message(),
              "p2p_world_size is 4, but rank 0 does not reach the memory of rank 2 by loads and stores");
    config.p2p_world_size = 0;
    EXPECT_EQ(must(ExpertParallel::create(*world, config))->config().p2p_world_size, 2);
  });
}

TEST(ShmemWorld, RanksThatDifferAreRefusedOnAllSides) {
  const FakeShmem shmem({.n_pes = 2});
  in_threads(2, [&](int) {
    const auto world = must(join(shmem));
    ExpertParallelConfig config = small_config();
    if (world->is_local(1)) config.top_k = 3;
    const std::string message = ExpertParallel::create(*world, config).status().message();
    EXPECT_NE(message.find("top_k is"), std::string::npos) << message;
  });
}

TEST(ShmemWorld, AHeapThatIsTooSmallIsNamedWithItsVariable) {
  const FakeShmem shmem({.n_pes = 2, .heap_bytes = 64 << 10});
  in_threads(2, [&](int) {
    const auto world = must(join(shmem));
    ExpertParallelConfig config = small_config();
    config.max_tokens_per_rank = 4096;
    const Status status = ExpertParallel::create(*world, config).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("FAKE_HEAP_SIZE is not set: it must be larger"), std::string::npos)
        << status.message();
  });
}

// SHMEM frees memory at all PEs together: when all have dropped it and make the next.
TEST(ShmemWorld, MemoryThatAllHaveDroppedIsReleased) {
  const FakeShmem shmem({.n_pes = 2});
  in_threads(2, [&](int) {
    const auto world = must(join(shmem));
    for (int i = 0; i < 3; ++i) must(ExpertParallel::create(*world, small_config()));
  });
  EXPECT_EQ(shmem.num_released(), 2 * 2);
}

// Nothing tells that a PE is gone: the deadline does, and the others end without it.
TEST(ShmemWorld, ARankThatDoesNotComeIsNamedAndNobodyWaitsForItAtTheEnd) {
  const FakeShmem shmem({.n_pes = 2});
  std::atomic<bool> is_over = false;
  const auto begin = Deadline::Clock::now();
  in_threads(2, [&](int) {
    auto world = must(join(shmem));
    auto ep = must(ExpertParallel::create(*world, small_config()));
    if (world->is_local(1)) {
      while (!is_over) std::this_thread::yield();  // as if it were gone
      return;
    }
    {
      Rank& rank = world->rank(0);
      const auto ids = must(rank.upload(std::vector<int32_t>{0, 1}));
      const auto tokens = must(rank.upload(std::vector<bf16>(64)));
      EXPECT_TRUE(
          ep->dispatch_async(0, {.tokens = tokens.data(), .topk_ids = ids.data(), .num_tokens = 1}).ok());
      const RowBuffers buffers = must(ep->row_buffers(0));
      const auto offsets = must(rank.allocate<uint32_t>(8));
      const auto experts = must(rank.allocate<int32_t>(8));
      const DispatchOutput output{.rows = buffers.encoded_rows,
                                  .src_info = buffers.src_info,
                                  .max_rows = buffers.max_rows,
                                  .row_offsets = offsets.data(),
                                  .expert_ids = experts.data()};
      EXPECT_TRUE(ep->dispatch_wait(0, output).ok());
      const Status status = ep->synchronize();
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    }
    ep.reset();
    world.reset();
    EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(10));
    is_over = true;
  });
  EXPECT_EQ(shmem.num_finalized(), 0);
  EXPECT_EQ(shmem.num_abandoned(), 2);
}

TEST(ShmemPlugin, OneOfAnotherVersionOrTargetIsRefused) {
  const FakeShmem shmem({});
  ShmemApi api = shmem.api();
  EXPECT_TRUE(check_shmem_api(&api, Target::kHost, "x.so").ok());
  EXPECT_EQ(check_shmem_api(&api, Target::kCuda, "x.so").message(),
            "x.so is a plugin for host; it must be for cuda");
  EXPECT_FALSE(check_shmem_api(nullptr, Target::kHost, "x.so").ok());
  api.size = 8;
  EXPECT_FALSE(check_shmem_api(&api, Target::kHost, "x.so").ok());
  api.version = "0.0.1";
  const std::string message = check_shmem_api(&api, Target::kHost, "x.so").message();
  EXPECT_NE(message.find("x.so is a plugin of Switchyard 0.0.1; it must be of"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace switchyard
