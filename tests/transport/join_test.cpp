// Processes that join a world: by each way to meet, and with everything that may go wrong on the way.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>

#include "processes.hpp"
#include "runtime/world_impl.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "transport/process/address.hpp"
#include "transport/process/rendezvous.hpp"
#include "transport/process/resolve.hpp"

namespace switchyard {
namespace {

using testing_support::join_options;
using testing_support::num_open_files;
using testing_support::Processes;
using testing_support::unique_address;
using testing_support::unique_name;
using testing_support::what_is_left;

constexpr char kToken[] = "00112233445566778899aabbccddeeff";

enum class Bootstrap { kAllGather, kUnixPath, kUnixAbstract, kTcp };

std::string unused_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr storage{};
  storage.sa_family = AF_INET;
  socklen_t size = sizeof(storage);
  (void)bind(socket.number(), &storage, sizeof(storage));
  (void)getsockname(socket.number(), &storage, &size);
  const auto* port = reinterpret_cast<const unsigned char*>(storage.sa_data);
  return std::to_string(port[0] * 256 + port[1]);
}

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.n_ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Every rank writes its number into the memory of all.
std::string write_to_all(World& world) {
  Transport& transport = transport_of(world);
  const std::vector<int> all = all_ranks(world);
  auto allocated = transport.allocate(all, 100'000, 512);
  if (!allocated.ok()) return allocated.status().to_string();
  const SymmetricMemory& memory = *allocated.value();
  for (const int local : world.local_ranks())
    for (const int rank : all) {
      if (memory.of_rank(rank)[local] != std::byte{0}) return "memory is not zeroed";
      memory.of_rank(rank)[99'000 + local] = static_cast<std::byte>(local + 1);
      memory.host_visible_of_rank(rank)[local] = static_cast<std::byte>(local + 1);
    }
  if (const Status status = transport.barrier(all); !status.ok()) return status.to_string();
  for (const int local : world.local_ranks())
    for (const int rank : all)
      if (memory.of_rank(local)[99'000 + rank] != static_cast<std::byte>(rank + 1) ||
          memory.host_visible_of_rank(local)[rank] != static_cast<std::byte>(rank + 1))
        return "rank " + std::to_string(rank) + " is not seen by rank " + std::to_string(local);
  return transport.barrier(all).message();
}

std::string join_and_write(const JoinOptions& options) {
  auto world = World::join(options);
  return world.ok() ? write_to_all(*world.value()) : world.status().to_string();
}

// The status of a join, and nothing else.
std::string try_to_join(const JoinOptions& options) { return World::join(options).status().to_string(); }

class Join : public testing::TestWithParam<std::tuple<Bootstrap, int>> {
 protected:
  JoinOptions options(const Processes& processes, int rank) const {
    const auto [bootstrap, n_ranks] = GetParam();
    JoinOptions options = join_options(rank, n_ranks, address_);
    if (bootstrap == Bootstrap::kAllGather) options.all_gather = processes.all_gather(n_ranks);
    if (bootstrap == Bootstrap::kTcp) options.token = kToken;
    return options;
  }
  static std::string make_address() {
    switch (std::get<0>(GetParam())) {
      case Bootstrap::kAllGather:
        return "";
      case Bootstrap::kUnixPath:
        return "unix:/tmp/" + unique_name();
      case Bootstrap::kUnixAbstract:
        return unique_address();
      case Bootstrap::kTcp:
        return "tcp:127.0.0.1:" + unused_port();
    }
    return "";
  }
  const std::string address_ = make_address();
};

TEST_P(Join, RanksWriteEachOthersMemoryAndLeaveNothingBehind) {
  const int n_ranks = std::get<1>(GetParam());
  Processes processes;
  for (int rank = 0; rank < n_ranks; ++rank)
    processes.start([&, rank]() -> std::string {
      const size_t files_before = num_open_files();
      {
        auto world = World::join(options(processes, rank));
        if (!world.ok()) return world.status().to_string();
        if (world.value()->n_ranks() != n_ranks || world.value()->local_ranks() != std::vector<int>{rank} ||
            std::string(world.value()->transport_name()) != "process" ||
            world.value()->num_ranks_on_device_of(rank) != 1)
          return "the world is not as it was joined";
        if (const std::string fault = write_to_all(*world.value()); !fault.empty()) return fault;
      }
      return what_is_left(files_before);
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
  EXPECT_FALSE(address_.starts_with("unix:/") && std::filesystem::exists(address_.substr(5)));
}

INSTANTIATE_TEST_SUITE_P(Ways, Join,
                         testing::Combine(testing::Values(Bootstrap::kAllGather, Bootstrap::kUnixPath,
                                                          Bootstrap::kUnixAbstract, Bootstrap::kTcp),
                                          testing::Values(2, 4, 8)));

TEST(JoinWorld, AProcessMayHaveSeveralRanks) {
  const std::string address = unique_address();
  Processes processes;
  for (const auto& [rank, count] : {std::pair(2, 3), std::pair(0, 2), std::pair(5, 1)})
    processes.start([&address, rank = rank, count = count]() -> std::string {
      JoinOptions options = join_options(rank, 6, address);
      options.num_local_ranks = count;
      auto world = World::join(options).value();
      if (world->num_ranks_on_device_of(rank) != count || !world->is_local(rank + count - 1) ||
          world->is_local(rank + count) || world->rank(rank).index() != rank)
        return "ranks are not as they were joined";
      try {
        (void)world->rank(rank == 0 ? 5 : 0);
        return "a rank of another process is there";
      } catch (const std::out_of_range& error) {
        if (std::string(error.what()).find(" is not local: this process has ") == std::string::npos)
          return error.what();
      }
      return write_to_all(*world);
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

TEST(JoinWorld, AWorldOfOneProcessNeedsNobody) {
  Processes processes;
  processes.start([] { return join_and_write(join_options(0, 1, unique_address())); });
  EXPECT_EQ(processes.report_of(0), "");
}

// However few files it may open: it joins, or says why it cannot.
TEST(JoinWorld, AShortageOfFilesIsNamed) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UBSan opens a pipe to look whether memory is readable, and finds none";
#endif
  Processes processes;
  constexpr size_t kMostFiles = 6;
  for (size_t num_files = 0; num_files < kMostFiles; ++num_files) {
    const std::string address = unique_address();
    for (const int rank : {0, 1})
      for (const int short_rank : {0, 1})
        processes.start([=] {
          JoinOptions options = join_options(rank, 2, address + "-" + std::to_string(short_rank));
          options.timeout_ns = 2'000'000'000;
          if (rank == short_rank) testing_support::allow_more_files(num_files);
          return try_to_join(options);
        });
  }
  const std::vector<std::string> reports = processes.reports();
  size_t num_joined = 0;
  for (size_t num_files = 0; num_files < kMostFiles; ++num_files)
    for (const size_t rank : {0, 1}) {
      const std::string& report = reports[4 * num_files + 2 * rank + rank];
      num_joined += report == "ok" ? 1 : 0;
      EXPECT_TRUE(report == "ok" || report.find("RLIMIT_NOFILE is ") != std::string::npos)
          << num_files << ": " << report;
    }
  EXPECT_GE(num_joined, 2u);
}

TEST(JoinWorld, OptionsAreChecked) {
  const auto refusal = [](void (*change)(JoinOptions&)) {
    JoinOptions options = join_options(1, 2, "unix:@x");
    change(options);
    return World::join(options).status().message();
  };
  EXPECT_EQ(refusal([](JoinOptions& options) { options.n_ranks = 513; }),
            "n_ranks is 513; it must be 1..512");
  EXPECT_EQ(refusal([](JoinOptions& options) { options.rank = 2; }), "rank is 2; it must be 0..1");
  EXPECT_EQ(refusal([](JoinOptions& options) { options.num_local_ranks = 2; }),
            "num_local_ranks is 2; from rank 1 on it must be 1..1");
  EXPECT_EQ(refusal([](JoinOptions& options) { options.timeout_ns = 0; }),
            "timeout_ns is 0; it must be at least 1");
  EXPECT_EQ(refusal([](JoinOptions& options) { options.host.mode = EmulatorMode::kSimulated; }),
            "host.mode is simulated; a world that is joined needs the fast mode");
  EXPECT_EQ(refusal([](JoinOptions& options) { options.rendezvous = ""; }),
            "join needs one of all_gather and rendezvous; none is given");
  EXPECT_EQ(refusal([](JoinOptions& options) {
              options.all_gather = [](const auto&) { return unavailable("never"); };
            }),
            "join needs one of all_gather and rendezvous; both are given");
  EXPECT_NE(refusal([](JoinOptions& options) {
              options.rendezvous = "tcp:127.0.0.1:9";
            }).find("tcp:127.0.0.1:9 needs a token of 32 hex digits"),
            std::string::npos);
}

TEST(JoinWorld, ADifferentNumberOfRanksIsRefusedOnAllSides) {
  const std::string address = unique_address();
  Processes processes;
  for (const auto& [rank, n_ranks] : {std::pair(0, 3), std::pair(1, 3), std::pair(2, 4)})
    processes.start(
        [&, rank = rank, n_ranks = n_ranks] { return try_to_join(join_options(rank, n_ranks, address)); });
  for (const std::string& report : processes.reports()) {
    EXPECT_EQ(report.rfind("invalid argument: n_ranks is 3 at rank 0 (process ", 0), 0u) << report;
    EXPECT_NE(report.find(" and 4 at rank 2 (process "), std::string::npos) << report;
  }
}

TEST(JoinWorld, ADifferentVersionIsRefusedOnAllSides) {
  const Address address = parse_address(unique_address()).value();
  Processes processes;
  for (const int rank : {0, 1, 2})
    processes.start([&, rank] {
      Hello hello = describe_this_process();
      hello.first_rank = rank;
      hello.num_ranks = 1;
      hello.n_ranks = 3;
      if (rank == 1) hello.version = "7.7.7";
      return meet_at(address, std::nullopt, hello, Deadline::in_ms(10'000)).status().to_string();
    });
  for (const std::string& report : processes.reports()) {
    EXPECT_EQ(report.rfind("invalid argument: version is ", 0), 0u) << report;
    EXPECT_NE(report.find(" and 7.7.7 at rank 1 (process "), std::string::npos) << report;
  }
}

TEST(JoinWorld, ARankThatTwoProcessesClaimIsRefusedByAllThatGather) {
  Processes processes;
  for (const int rank : {0, 1, 1})
    processes.start([&, rank] {
      JoinOptions options = join_options(rank, 3, "");
      options.all_gather = processes.all_gather(3);
      return try_to_join(options);
    });
  for (const std::string& report : processes.reports())
    EXPECT_EQ(report.rfind("invalid argument: rank 1 is claimed by process ", 0), 0u) << report;
}

TEST(JoinWorld, ASecondRankTwoIsRefusedAndChangesNothing) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 2})
    processes.start([&, rank] { return join_and_write(join_options(rank, 4, address)); });
  processes.start([&] { return join_and_write(join_options(2, 4, address)); });
  // One of the two is refused, whichever came later; the others still wait for ranks 1 and 3.
  processes.wait_for_any({1, 2});
  for (const int rank : {1, 3})
    processes.start([&, rank] { return join_and_write(join_options(rank, 4, address)); });
  std::vector<std::string> reports = processes.reports();
  EXPECT_EQ(reports[0] + reports[3] + reports[4], "");
  const std::string& refused = reports[1].empty() ? reports[2] : reports[1];
  EXPECT_EQ(refused.rfind("invalid argument: rank 2 is taken by process ", 0), 0u)
      << reports[1] << "|" << reports[2];
}

TEST(JoinWorld, ASecondRankZeroIsRefused) {
  const std::string path = "/tmp/" + unique_name();
  Processes processes;
  processes.start([&] { return join_and_write(join_options(0, 2, "unix:" + path)); });
  testing_support::wait_for_connections(path, 0);
  processes.start([&] { return try_to_join(join_options(0, 2, "unix:" + path)); });
  EXPECT_EQ(processes.report_of(1),
            "invalid argument: rendezvous unix:" + path + ": another process with rank 0 listens there");
  processes.start([&] { return join_and_write(join_options(1, 2, "unix:" + path)); });
  EXPECT_EQ(processes.report_of(0) + processes.report_of(2), "");
}

TEST(JoinWorld, AWrongTokenIsRefusedAndChangesNothing) {
  const std::string address = "tcp:127.0.0.1:" + unused_port();
  Processes processes;
  const auto with_token = [&](int rank, const char* token) {
    JoinOptions options = join_options(rank, 2, address);
    options.token = token;
    return options;
  };
  processes.start([&] { return join_and_write(with_token(0, kToken)); });
  processes.start([&] { return try_to_join(with_token(1, "00112233445566778899aabbccddeefe")); });
  processes.start([&] { return try_to_join(with_token(1, "10112233445566778899aabbccddeeff")); });
  const std::string expected =
      "invalid argument: rendezvous " + address + ": the token is not the one of rank 0";
  EXPECT_EQ(processes.report_of(1), expected);
  EXPECT_EQ(processes.report_of(2), expected);
  processes.start([&] { return join_and_write(with_token(1, kToken)); });
  EXPECT_EQ(processes.report_of(0) + processes.report_of(3), "");
}

// A name service that knows two addresses of every name: `first` and 127.0.0.1.
const char* first_number = nullptr;
int look_up_two(const char*, const char* port, const addrinfo* hints, addrinfo** found) {
  addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST;
  (void)getaddrinfo(first_number, port, &numeric, found);
  return getaddrinfo("127.0.0.1", port, &numeric, &(*found)->ai_next);
}

TEST(JoinWorld, EveryAddressOfANameIsTried) {
  const std::string port = unused_port();
  Processes processes;
  // What closes every connection, at an address that rank 1 tries first; rank 0 cannot listen at its first.
  processes.start([&]() -> std::string {
    const Result<Listener> listener =
        Listener::listen_at(parse_address("tcp:127.0.0.2:" + port).value(), Deadline::in_ms(1000));
    if (!listener.ok()) return listener.status().to_string();
    processes.shared().stage[0] = 1;
    while (true) (void)(listener.value().accept_next().ok());
  });
  ASSERT_TRUE(processes.wait_for(processes.shared().stage[0], 1));
  for (const int rank : {0, 1})
    processes.start([&, rank] {
      first_number = rank == 0 ? "192.0.2.1" : "127.0.0.2";
      name_service.look_up = &look_up_two;
      name_service.free = [](addrinfo*) {};
      JoinOptions options = join_options(rank, 2, "tcp:two-addresses.invalid:" + port);
      options.token = kToken;
      return join_and_write(options);
    });
  EXPECT_EQ(processes.report_of(1), "");
  EXPECT_EQ(processes.report_of(2), "");
}

// Connects and sends; the connections stay open until the returned sockets go.
std::vector<FileDescriptor> pester(const Address& address) {
  std::vector<FileDescriptor> sockets;
  for (const std::string& sent :
       {std::string(), std::string("\x08\0\0\0half", 8), std::string(3, '\xff'), std::string(4096, '\xff'),
        std::string("\x04\0\0\0abcd\x04\0\0\0efgh", 16)}) {
    Result<Connected> connected = try_connect(address, Deadline::in_ms(1000));
    if (!connected.ok() || !connected.value().socket.is_open()) continue;
    (void)::send(connected.value().socket.number(), sent.data(), sent.size(), MSG_NOSIGNAL);
    sockets.push_back(std::move(connected.value().socket));
  }
  return sockets;
}

TEST(JoinWorld, StrangersAtTheRendezvousChangeNothing) {
  for (const std::string& address : {unique_address(), "tcp:127.0.0.1:" + unused_port()}) {
    Processes processes;
    const auto start = [&](int rank) {
      processes.start([&, rank] {
        JoinOptions options = join_options(rank, 3, address);
        options.token = kToken;
        return join_and_write(options);
      });
    };
    start(0);
    start(1);
    std::vector<FileDescriptor> strangers;
    while (strangers.size() < 5) strangers = pester(parse_address(address).value());
    for (int i = 0; i < 40; ++i) {  // more than are served at once
      std::vector<FileDescriptor> more = pester(parse_address(address).value());
      for (FileDescriptor& socket : more) strangers.push_back(std::move(socket));
    }
    start(2);
    for (const std::string& report : processes.reports()) EXPECT_EQ(report, "") << address;
  }
}

// How many of the connections have been closed at the other end, which sends nothing.
size_t num_closed(const std::vector<FileDescriptor>& sockets) {
  std::vector<pollfd> polled;
  for (const FileDescriptor& socket : sockets) polled.push_back({socket.number(), POLLIN, 0});
  return static_cast<size_t>(std::max(poll(polled.data(), polled.size(), 0), 0));
}

TEST(JoinWorld, StrangersAtTheMeshChangeNothing) {
  Processes processes;
  for (const int rank : {0, 1, 2})
    processes.start([&, rank] {
      JoinOptions options = join_options(rank, 3, "");
      options.all_gather = [&](const std::vector<std::byte>& mine) {
        auto all = processes.all_gather(3)(mine);
        processes.shared().stage[0].fetch_add(1);
        if (rank == 2) processes.wait_for(processes.shared().stage[1], 1);
        return all;
      };
      return join_and_write(options);
    });
  ASSERT_TRUE(processes.wait_for(processes.shared().stage[0], 3));
  std::vector<FileDescriptor> strangers;
  constexpr size_t kNumTimes = 16;  // more than are served at once
  for (const std::string& name : testing_support::abstract_listeners())
    for (size_t i = 0; i < kNumTimes; ++i)
      for (FileDescriptor& socket : pester(parse_address("unix:@" + name).value()))
        strangers.push_back(std::move(socket));
  EXPECT_GE(strangers.size(), 3 * 5 * kNumTimes);
  // Ranks 0 and 1 wait for rank 2, and drop theirs meanwhile.
  const Deadline deadline = Deadline::in_ms(60'000);
  while (num_closed(strangers) < 2 * 5 * kNumTimes && !deadline.has_passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(num_closed(strangers), 2 * 5 * kNumTimes);
  processes.shared().stage[1] = 1;
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

TEST(JoinWorld, LateRanksAreNamedAtTheDeadline) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank] {
      JoinOptions options = join_options(rank, 3, address);
      options.timeout_ns = rank == 0 ? 1'500'000'000 : 10'000'000'000;
      return try_to_join(options);
    });
  EXPECT_EQ(processes.report_of(0), "deadline exceeded: rank 2 did not join in time");
  EXPECT_EQ(processes.report_of(1), "deadline exceeded: rank 2 did not join in time");
  processes.start([&] {
    JoinOptions options = join_options(1, 2, "unix:/nonexistent/" + unique_name());
    options.timeout_ns = 50'000'000;
    return try_to_join(options);
  });
  EXPECT_NE(processes.report_of(2).find("rank 0 did not answer in time: No such file"), std::string::npos);
}

// Death in the middle of join.

TEST(JoinWorld, ADeathAtTheRendezvousIsToldToAll) {
  const std::string path = "/tmp/" + unique_name();
  Processes processes;
  for (const int rank : {0, 1, 2})
    processes.start([&, rank] { return try_to_join(join_options(rank, 4, "unix:" + path)); });
  testing_support::wait_for_connections(path, 2);
  processes.send_signal(2, SIGKILL);
  const std::string expected = "unavailable: rank 2 (process " + std::to_string(processes.pid(2)) +
                               ") has ended while the others joined";
  EXPECT_EQ(processes.report_of(0), expected);
  EXPECT_EQ(processes.report_of(1), expected);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(JoinWorld, AServerThatDiesIsReplaced) {
  const std::string path = "/tmp/" + unique_name();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank] { return try_to_join(join_options(rank, 3, "unix:" + path)); });
  testing_support::wait_for_connections(path, 1);
  processes.send_signal(0, SIGKILL);
  EXPECT_EQ(processes.report_of(1), "unavailable: rendezvous unix:" + path + ": rank 0 has ended");
  EXPECT_TRUE(std::filesystem::exists(path));
  for (const int rank : {1, 0})
    processes.start([&, rank] { return join_and_write(join_options(rank, 2, "unix:" + path)); });
  EXPECT_EQ(processes.report_of(2) + processes.report_of(3), "");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(JoinWorld, ADeathBeforeTheMeshIsToldToAll) {
  for (const int victim : {0, 1, 2}) {
    Processes processes;
    for (const int rank : {0, 1, 2})
      processes.start([&, rank] {
        JoinOptions options = join_options(rank, 3, "");
        options.all_gather = [&](const std::vector<std::byte>& mine) {
          auto all = processes.all_gather(3)(mine);
          if (rank == victim) raise(SIGKILL);
          return all;
        };
        return try_to_join(options);
      });
    const std::vector<std::string> reports = processes.reports();
    const std::string dead = "rank " + std::to_string(victim) + " (process " +
                             std::to_string(processes.pid(static_cast<size_t>(victim))) + ") has ended";
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& report = reports[static_cast<size_t>(rank)];
      if (rank == victim)
        EXPECT_EQ(report, "signal 9");
      else  // as it saw by itself, or as the other one said that saw it and left
        EXPECT_TRUE(report.rfind("unavailable: ", 0) == 0 && report.find(dead) != std::string::npos)
            << report;
    }
  }
}

}  // namespace
}  // namespace switchyard
