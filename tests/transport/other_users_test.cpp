// Processes of another user that want to join a world: the kernel says whose they are, whatever they claim.
// Only root can become another user, so that elsewhere these tests are skipped.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "processes.hpp"
#include "transport/process/address.hpp"
#include "transport/process/rendezvous.hpp"

namespace switchyard {
namespace {

using testing_support::join_options;
using testing_support::Processes;
using testing_support::unique_name;

constexpr uid_t kNobody = 65534;
bool becomes_nobody() { return setresuid(kNobody, kNobody, kNobody) == 0; }

std::string join_and_leave(int rank, const std::string& address) {
  return World::join(join_options(rank, 2, address)).status().to_string();
}

enum class FirstWords { kChallenge, kClosed, kNone };

// What the listener says first.
FirstWords first_words_of(const Address& address) {
  const Result<Connected> connected = try_connect(address, Deadline::in_ms(1000));
  if (!connected.ok() || !connected.value().socket.is_open()) return FirstWords::kNone;
  pollfd readable{connected.value().socket.number(), POLLIN, 0};
  if (poll(&readable, 1, 20'000) <= 0) return FirstWords::kNone;
  char byte = 0;
  return recv(readable.fd, &byte, 1, 0) == 1 ? FirstWords::kChallenge : FirstWords::kClosed;
}

class OtherUsers : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  }
};

// The name is in no file system, whose permissions would keep another user away.
TEST_F(OtherUsers, AreDroppedUnheardAtTheRendezvous) {
  const std::string name = unique_name(), address = "unix:@" + name;
  Processes processes;
  processes.start([&] { return join_and_leave(0, address); });
  testing_support::wait_for_connections(name, 0);
  processes.start([&]() -> std::string {
    const Address listener = parse_address(address).value();
    Hello forged = describe_this_process();  // which is still of root
    forged.first_rank = 1;
    forged.num_ranks = 1;
    forged.n_ranks = 2;
    if (first_words_of(listener) != FirstWords::kChallenge) return "its own user is not greeted";
    if (!becomes_nobody()) return "cannot become another user";
    if (first_words_of(listener) != FirstWords::kClosed) return "another user is greeted";
    return visit_rendezvous(listener, Token{}, forged, Deadline::in_ms(500)).status().to_string();
  });
  const std::string report = processes.report_of(1);
  EXPECT_TRUE(
      report.starts_with("deadline exceeded: rendezvous " + address + ": rank 0 did not answer in time: "))
      << report;
  processes.start([&] { return join_and_leave(1, address); });
  EXPECT_EQ(processes.report_of(0), "ok");
  EXPECT_EQ(processes.report_of(2), "ok");
}

TEST_F(OtherUsers, AreNotTakenForRank0) {
  const std::string name = unique_name(), address = "unix:@" + name;
  Processes processes;
  processes.start([&] { return join_and_leave(0, address); });
  testing_support::wait_for_connections(name, 0);
  processes.start([&]() -> std::string {
    return becomes_nobody() ? join_and_leave(1, address) : "cannot become another user";
  });
  EXPECT_EQ(processes.report_of(1),
            "invalid argument: rendezvous " + address + ": user 0 listens there; it must be user 65534");
  processes.start([&] { return join_and_leave(1, address); });
  EXPECT_EQ(processes.report_of(0), "ok");
  EXPECT_EQ(processes.report_of(2), "ok");
}

// Ranks, processes and nonces are those of the all-gather; only the user is another one.
TEST_F(OtherUsers, AreDroppedAtTheMesh) {
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      JoinOptions options = join_options(rank, 2, "");
      options.all_gather = [&](const std::vector<std::byte>& mine) {
        auto all = processes.all_gather(2)(mine);
        if (rank == 1 && !becomes_nobody()) std::abort();
        return all;
      };
      return World::join(options).status().to_string();
    });
  const auto name_of = [&](int rank) {
    const std::string process = std::to_string(processes.pid(static_cast<size_t>(rank)));
    return "unavailable: rank " + std::to_string(rank) + " (process " + process + ")";
  };
  EXPECT_EQ(processes.report_of(1), name_of(0) + " has left while the others joined");
  EXPECT_EQ(processes.report_of(0), name_of(1) + " has ended while the others joined");
}

}  // namespace
}  // namespace switchyard
