// What is said when this process's context on a GPU is lost: which rank has taken it along, or that none is
// known to have ended.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ep/ep_harness.hpp"
#include "processes.hpp"
#include "runtime/peer_witness.hpp"
#include "transport/process/process_state.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::join;
using testing_support::Processes;
using testing_support::Shape;
using testing_support::unique_address;

// A transport that knows of a death when it is asked for the third time.
class LateTransport : public Transport {
 public:
  explicit LateTransport(int dead) : dead_(dead) {}
  const char* name() const override { return "late"; }
  int n_ranks() const override { return 4; }
  int first_local_rank() const override { return 0; }
  int num_local_ranks() const override { return 1; }
  int num_ranks_on_device_of(int) const override { return 1; }
  Result<std::vector<Bytes>> all_gather(std::span<const int>, const Bytes&) override {
    return unavailable("not here");
  }
  Status barrier(std::span<const int>) override { return unavailable("not here"); }
  Result<std::unique_ptr<SymmetricMemory>> allocate(std::span<const int>, uint64_t, uint64_t) override {
    return unavailable("not here");
  }
  std::vector<int> dead_ranks() const override { return {}; }
  std::vector<int> ending_ranks() const override {
    return ++num_asked_ < 3 ? std::vector<int>() : std::vector<int>{dead_};
  }
  std::chrono::milliseconds death_notice() const override { return std::chrono::milliseconds(60); }
  std::shared_ptr<void> watch(std::function<void(int)>) override { return nullptr; }

 private:
  const int dead_;
  mutable int num_asked_ = 0;
};

TEST(LostContexts, NameThePeerThatHasEndedOrSayThatNoneHas) {
  const Status error = internal_error("an illegal memory access was encountered");
  const auto explain = [&](int dead) {
    const LateTransport transport(dead);
    const auto witness = make_peer_witness(transport, {0, 2, 3});
    return explain_lost_context(error).to_string();
  };
  EXPECT_EQ(explain(3),
            "unavailable: rank 2 has ended, and this process's context on its GPU is lost with it: "
            "an illegal memory access was encountered");
  EXPECT_EQ(explain(1),
            "internal: an illegal memory access was encountered; this process's context on its GPU is lost, "
            "and no other rank is known to have ended");
  EXPECT_EQ(explain_lost_context(error).to_string(), error.to_string()) << "nobody knows any peers";
}

constexpr int kKilled = 8;  // the stage that says how many were killed

// Stands in for a call of CUDA that finds out that the context is lost.
std::string lose_context() {
  return explain_lost_context(internal_error("cudaStreamIsCapturing: an illegal memory access")).to_string();
}
std::string named(int rank) {
  return "unavailable: rank " + std::to_string(rank) +
         " has ended, and this process's context on its GPU is lost with it: cudaStreamIsCapturing: an "
         "illegal memory access";
}

TEST(LostContexts, OfAWorldNameTheRankThatIsKilled) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      const std::unique_ptr<World> world = join(rank, 2, address);
      processes.shared().stage[rank] = 1;
      if (rank == 1) pause();
      processes.wait_for(processes.shared().stage[kKilled], 1);
      std::string said;
      std::thread([&] { said = lose_context(); }).join();
      return said == named(1) ? "" : said;
    });
  for (const int rank : {0, 1}) ASSERT_TRUE(processes.wait_for(processes.shared().stage[rank], 1));
  processes.send_signal(1, SIGKILL);
  processes.shared().stage[kKilled] = 1;
  EXPECT_EQ(processes.report_of(0), "");
}

// Ranks that live have nothing to do with it, and nobody waits for one of them to die.
TEST(LostContexts, AmongRanksThatLiveAreAProcesssOwn) {
  const std::string address = unique_address();
  Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      const std::unique_ptr<World> world = join(rank, 2, address);
      processes.shared().stage[rank] = 1;
      if (rank == 1) pause();
      const auto begun = std::chrono::steady_clock::now();
      const std::string said = lose_context();
      if (std::chrono::steady_clock::now() - begun > std::chrono::seconds(5)) return "it took too long";
      return said;
    });
  EXPECT_EQ(processes.report_of(0),
            "internal: cudaStreamIsCapturing: an illegal memory access; this process's context on its GPU is "
            "lost, and no other rank is known to have ended");
}

// A process that is stopped cannot take its signal, but its end is certain.
TEST(LostContexts, AProcessThatIsKilledShowsAtOnce) {
  Processes processes;
  processes.start([]() -> std::string { return pause(), ""; });
  const int64_t pid = processes.pid(0);
  EXPECT_EQ(state_of_process(pid), ProcessState::kRuns);
  EXPECT_EQ(state_of_process(getpid()), ProcessState::kRuns);
  processes.send_signal(0, SIGSTOP);
  EXPECT_EQ(state_of_process(pid), ProcessState::kRuns);
  processes.send_signal(0, SIGKILL);
  EXPECT_EQ(state_of_process(pid), ProcessState::kEnds);
  EXPECT_EQ(processes.report_of(0), "signal 9");
  EXPECT_EQ(state_of_process(pid), ProcessState::kEnds) << "it is gone";
}

TEST(LostContexts, NameARankByItsNumberAmongTheSurvivors) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 2, .tokens_per_rank = {4, 4, 4}};
  const std::string address = unique_address();
  Processes processes;
  for (int rank = 0; rank < shape.n_ranks; ++rank)
    processes.start([&, rank]() -> std::string {
      EpHarness harness(join(rank, shape.n_ranks, address), shape, {.timeout_ns = 20'000'000'000});
      processes.shared().stage[rank] = 1;
      if (rank == 0) pause();
      processes.wait_for(processes.shared().stage[kKilled], 1);
      if (const std::string said = lose_context(); said != named(0)) return said;
      if (const Status status = harness.ep().reset({1, 2}); !status.ok()) return status.to_string();
      processes.shared().stage[rank] = 2;
      if (rank == 2) pause();
      processes.wait_for(processes.shared().stage[kKilled], 2);
      const std::string said = lose_context();
      return said == named(1) ? "" : said;
    });
  for (int rank = 0; rank < shape.n_ranks; ++rank)
    ASSERT_TRUE(processes.wait_for(processes.shared().stage[rank], 1));
  processes.send_signal(0, SIGKILL);
  processes.shared().stage[kKilled] = 1;
  for (const int rank : {1, 2})
    ASSERT_TRUE(processes.wait_for(processes.shared().stage[rank], 2)) << processes.report_of(rank);
  processes.send_signal(2, SIGKILL);
  processes.shared().stage[kKilled] = 2;
  EXPECT_EQ(processes.report_of(1), "");
}

}  // namespace
}  // namespace switchyard
