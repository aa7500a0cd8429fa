// Processes that have joined a world: agreements, memory, and what the others see when one of them ends,
// stops or leaves.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "processes.hpp"
#include "runtime/world_impl.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "transport/process/channel.hpp"

namespace switchyard {
namespace {

using testing_support::join;
using testing_support::Processes;
using testing_support::unique_address;

std::vector<int> ranks_below(int n_ranks) {
  std::vector<int> ranks(static_cast<size_t>(n_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

enum class Call { kGather, kBarrier, kAllocate };
Status make_call(Call call, Transport& transport, const std::vector<int>& members) {
  switch (call) {
    case Call::kGather:
      return transport.all_gather(members, {}).status();
    case Call::kBarrier:
      return transport.barrier(members);
    case Call::kAllocate:
      return transport.allocate(members, 1 << 20, 64).status();
  }
  return Status();
}

TEST(ProcessTransport, GathersAmongAnyMembersInTheirOrder) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1, 2, 3})
    processes.start([&, rank]() -> std::string {
      const auto world = join(rank, 4, address);
      Transport& transport = transport_of(*world);
      const auto said = [](int value) { return Bytes(static_cast<size_t>(10'000 * value), std::byte{1}); };
      for (int i = 0; i < 50; ++i) {
        const std::vector<int> members = i % 2 == 0 ? std::vector<int>{3, 0, 2} : std::vector<int>{1, 3, 0};
        if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
        const auto all = transport.all_gather(members, said(rank + i % 5));
        if (!all.ok()) return all.status().to_string();
        for (size_t j = 0; j < members.size(); ++j)
          if (all.value()[j] != said(members[j] + i % 5)) return "another rank's bytes";
      }
      const Bytes large((1 << 20) - 24, std::byte{9});
      const auto all = transport.all_gather(ranks_below(4), large);
      if (!all.ok()) return all.status().to_string();
      if (all.value() != std::vector<Bytes>(4, large)) return "not all bytes have come";
      const Status too_large = transport.all_gather(ranks_below(4), Bytes(1 << 20)).status();
      if (too_large.message() != "all_gather of 1048576 bytes; at most 1048552") return too_large.to_string();
      return transport.barrier(ranks_below(4)).message();
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

TEST(ProcessTransport, SizesThatDifferAreRefusedOnAllSides) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      const auto world = join(rank, 2, address);
      const Status status =
          transport_of(*world).allocate(ranks_below(2), rank == 0 ? 4096 : 8192, 16).status();
      const Status again = transport_of(*world).allocate(ranks_below(2), 4096, 16).status();
      return again.ok() ? status.message() : again.to_string();
    });
  EXPECT_EQ(processes.report_of(0),
            "allocate: 4096 and 16 host-visible bytes here, 8192 and 16 at rank 1; they must be the same");
  EXPECT_EQ(processes.report_of(1),
            "allocate: 8192 and 16 host-visible bytes here, 4096 and 16 at rank 0; they must be the same");
}

// A process that may not open as many files as it is sent is not taken for dead, nor takes others for dead:
// all hear of its limit, and all go on.
TEST(ProcessTransport, AShortageOfFilesIsNamedOnAllSidesAndLeavesTheWorldWhole) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UBSan opens a pipe to look whether memory is readable, and finds none";
#endif
  for (const size_t num_files : {0, 1, 3, 4, 5}) {
    const std::string address = unique_address();
    Processes processes;
    for (const int rank : {0, 1, 2})
      processes.start([&, rank]() -> std::string {
        const auto world = join(rank, 3, address);
        Transport& transport = transport_of(*world);
        if (rank == 1) testing_support::allow_more_files(num_files);
        const Status status = transport.allocate(ranks_below(3), 4096, 16).status();
        testing_support::allow_all_files();
        const Status next = transport.allocate(ranks_below(3), 4096, 16).status();
        return next.ok() ? status.to_string() : "afterwards: " + next.to_string();
      });
    for (const std::string& report : processes.reports()) {
      EXPECT_EQ(report.rfind("resource exhausted: ", 0), 0u) << num_files << ": " << report;
      EXPECT_NE(report.find("RLIMIT_NOFILE is "), std::string::npos) << num_files << ": " << report;
    }
  }
}

// A user may have as many files on their way between processes as RLIMIT_NOFILE says, and root any number.
TEST(ProcessTransport, FilesWaitUntilOthersHaveArrived) {
  Processes processes;
  processes.start([]() -> std::string {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return "no sockets";
    Channel one{FileDescriptor(ends[0])}, other{FileDescriptor(ends[1])};
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) return "still root";
    testing_support::allow_more_files(4);
    int num_sent = 0;
    for (; num_sent < 4096 && !one.has_unsent(); ++num_sent)
      if (const Status status = one.send_with_files(Bytes(1), std::vector<int>{0}); !status.ok())
        return status.to_string();
    if (!one.is_short_of_files()) return "all were taken at once";
    if (one.flush_until(Deadline::in_ms(20))) return "it was sent nevertheless";
    testing_support::allow_all_files();
    int num_received = 0;
    while (other.receive() && num_received < num_sent) {
      while (const std::optional<Frame> frame = other.next_frame())
        num_received += frame->files.size() == 1 ? 1 : 4096;
      if (!one.flush_until(Deadline::in_ms(1000))) return "it was not sent";
    }
    return num_received == num_sent ? "" : std::to_string(num_received) + " have come";
  });
  EXPECT_EQ(processes.report_of(0), "");
}

TEST(ProcessTransport, MemoryOutlivesTheProcessThatMadeIt) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      const auto world = join(rank, 2, address);
      const auto memory = transport_of(*world).allocate(ranks_below(2), 4096, 0).value();
      memory->of_rank(rank)[17] = std::byte{42};
      if (!transport_of(*world).barrier(ranks_below(2)).ok()) return "no barrier";
      if (rank == 1) raise(SIGKILL);
      while (transport_of(*world).dead_ranks().empty()) std::this_thread::yield();
      return memory->of_rank(1)[17] == std::byte{42} ? "" : "the memory is gone";
    });
  EXPECT_EQ(processes.report_of(0), "");
}

class Death : public testing::TestWithParam<Call> {};

// Rank 2 is killed while the others wait for it; they name it, and go on without it.
TEST_P(Death, ASurvivorNamesTheRankAtOnceAndGoesOnWithoutIt) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1, 2, 3})
    processes.start([&, rank]() -> std::string {
      const auto world = join(rank, 4, address);
      Transport& transport = transport_of(*world);
      std::atomic<int> num_told = 0;
      const auto watch = transport.watch([&](int dead) { num_told += dead == 2 ? 1 : 100; });
      if (!make_call(GetParam(), transport, ranks_below(4)).ok()) return "the first call failed";
      processes.shared().stage[0].fetch_add(1);
      if (rank == 2) pause();
      const Status status = make_call(GetParam(), transport, ranks_below(4));
      const auto time = std::chrono::steady_clock::now().time_since_epoch();
      processes.shared().stage[10 + rank] =
          static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count() % 1'000'000);
      const Status again = transport.barrier(ranks_below(4));
      if (status.to_string() != again.to_string()) return "twice: " + again.to_string();
      while (num_told == 0) std::this_thread::yield();
      std::atomic<int> num_told_late = 0;
      const auto late_watch = transport.watch([&](int dead) { num_told_late += dead; });
      if (num_told != 1 || num_told_late != 2 || transport.dead_ranks() != std::vector<int>{2})
        return "the dead rank was not told once";
      const std::vector<int> survivors = {0, 1, 3};
      if (Status next = make_call(GetParam(), transport, survivors); !next.ok()) return next.to_string();
      return status.to_string();
    });
  ASSERT_TRUE(processes.wait_for(processes.shared().stage[0], 4));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  processes.send_signal(2, SIGKILL);
  const std::string expected =
      "unavailable: rank 2 (process " + std::to_string(processes.pid(2)) + ") has ended";
  int latest = 0;
  const int killed =
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count() % 1'000'000);
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_EQ(processes.report_of(rank), expected);
    latest = std::max(latest, processes.shared().stage[10 + rank].load() - killed);
  }
  std::printf("  all survivors knew within %d ms\n", latest);
}

// At any moment: the victim goes on and on until it is killed.
TEST_P(Death, AtARandomMomentIsNamedToo) {
  for (int run = 0; run < 6; ++run) {
    const std::string address = unique_address();
    Processes processes;
    for (const int rank : {0, 1, 2})
      processes.start([&, rank]() -> std::string {
        const auto world = join(rank, 3, address);
        processes.shared().stage[0].fetch_add(1);
        while (true) {
          const Status status = make_call(GetParam(), transport_of(*world), ranks_below(3));
          if (!status.ok()) return status.to_string();
        }
      });
    ASSERT_TRUE(processes.wait_for(processes.shared().stage[0], 3));
    std::this_thread::sleep_for(std::chrono::microseconds(3000 + 777 * run));
    processes.send_signal(1, SIGKILL);
    const std::string dead = "rank 1 (process " + std::to_string(processes.pid(1)) + ") has ended";
    for (const size_t rank : {0, 2}) {
      const std::string report = processes.report_of(rank);  // or as the other one said that left
      EXPECT_TRUE(report.rfind("unavailable: ", 0) == 0 && report.find(dead) != std::string::npos) << report;
    }
  }
}

// A stopped process is alive: only the deadline tells. When it goes on, it and the others go on.
TEST_P(Death, AStoppedRankIsNamedAtTheDeadline) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1, 2})
    processes.start([&, rank]() -> std::string {
      JoinOptions options = testing_support::join_options(rank, 3, address);
      options.timeout_ns = 1'500'000'000;
      const auto world = join(options);
      Transport& transport = transport_of(*world);
      processes.shared().stage[0].fetch_add(1);
      if (rank == 1) {
        raise(SIGSTOP);
        return transport.barrier(std::vector<int>{0, 1}).message();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const Status status = make_call(GetParam(), transport, ranks_below(3));
      processes.shared().stage[1].fetch_add(1);
      if (!processes.wait_for(processes.shared().stage[2], 1)) return "the test hangs";
      if (!transport.dead_ranks().empty()) return "a stopped rank is not dead";
      if (rank == 0)
        if (Status next = transport.barrier(std::vector<int>{0, 1}); !next.ok()) return next.to_string();
      return status.to_string();
    });
  ASSERT_TRUE(processes.wait_for(processes.shared().stage[1], 2));
  processes.send_signal(1, SIGCONT);
  processes.shared().stage[2] = 1;
  const std::string expected =
      "deadline exceeded: rank 1 (process " + std::to_string(processes.pid(1)) + ") did not answer in time";
  EXPECT_EQ(processes.report_of(0), expected);
  EXPECT_EQ(processes.report_of(2), expected);
  EXPECT_EQ(processes.report_of(1), "");
}

INSTANTIATE_TEST_SUITE_P(Calls, Death, testing::Values(Call::kGather, Call::kBarrier, Call::kAllocate));

TEST(ProcessTransport, ARankThatLeavesIsNotDead) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1, 2})
    processes.start([&, rank]() -> std::string {
      auto world = join(rank, 3, address);
      Transport& transport = transport_of(*world);
      std::atomic<int> num_told = 0;
      const auto watch = transport.watch([&](int) { ++num_told; });
      if (!transport.barrier(ranks_below(3)).ok()) return "no barrier";
      if (rank == 2) {
        world.reset();
        return "";
      }
      const Status status = transport.barrier(ranks_below(3));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // its process has ended as well
      if (num_told != 0 || !transport.dead_ranks().empty()) return "it is called dead";
      const Status pair = transport.barrier(std::vector<int>{0, 1});
      return pair.ok() ? status.to_string() : pair.to_string();
    });
  const std::string expected =
      "unavailable: rank 2 (process " + std::to_string(processes.pid(2)) + ") has left";
  EXPECT_EQ(processes.report_of(0), expected);
  EXPECT_EQ(processes.report_of(1), expected);
  EXPECT_EQ(processes.report_of(2), "");
}

// A process that was started by a rank, and holds copies of its sockets, does not hide the rank's end.
TEST(ProcessTransport, ADeathShowsBehindAForkedChild) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      const auto world = join(rank, 2, address);
      Transport& transport = transport_of(*world);
      if (rank == 0) return transport.barrier(ranks_below(2)).to_string();
      const pid_t child = fork();
      if (child == 0) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        _exit(0);
      }
      raise(SIGKILL);
      return "";
    });
  EXPECT_EQ(processes.report_of(0),
            "unavailable: rank 1 (process " + std::to_string(processes.pid(1)) + ") has ended");
}

TEST(ProcessTransport, ADroppedWatchIsToldNothing) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      const auto world = join(rank, 2, address);
      Transport& transport = transport_of(*world);
      std::atomic<int> num_told = 0, num_self_dropped = 0;
      auto dropped = transport.watch([&](int) { ++num_told; });
      std::shared_ptr<void> self_dropping;
      self_dropping = transport.watch([&](int) {
        self_dropping.reset();
        ++num_self_dropped;
      });
      dropped.reset();
      if (!transport.barrier(ranks_below(2)).ok()) return "no barrier";
      if (rank == 1) raise(SIGKILL);
      while (num_self_dropped == 0) std::this_thread::yield();
      return num_told == 0 ? "" : "a dropped watch was told";
    });
  EXPECT_EQ(processes.report_of(0), "");
}

}  // namespace
}  // namespace switchyard
