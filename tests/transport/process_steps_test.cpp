// Steps of ranks that are processes of their own: the same results as in one process; a rank that dies or
// stops is named by all others, which then go on without it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "ep/ep_harness.hpp"
#include "processes.hpp"
#include "runtime/world_impl.hpp"
#include "sweep.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard {
namespace {

using testing_support::as_run;
using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::must;
using testing_support::num_open_files;
using testing_support::Processes;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::StepMode;
using testing_support::unique_address;
using testing_support::what_is_left;

// On a GPU: SWITCHYARD_PROCESS_TARGET=cuda, in a run of these tests alone, since processes are forks of this
// one, which must not have used the GPU. Under MPS a rank that is killed may take the others' contexts along.
bool is_on_gpu() {
  const char* target = std::getenv("SWITCHYARD_PROCESS_TARGET");
  return target != nullptr && std::string(target) == "cuda";
}

// Longer than a rank waits for anything on a machine that has more to do.
constexpr uint64_t kPatienceNs = 90'000'000'000;

TargetChoice target() { return is_on_gpu() ? TargetChoice::kCuda : TargetChoice::kHost; }

std::unique_ptr<World> join(int rank, int n_ranks, const std::string& address) {
  JoinOptions options = testing_support::join_options(rank, n_ranks, address);
  options.target = target();
  return testing_support::join(options);
}

// Starts a process for each rank of a new world; what `run_rank` returns is its report. It must leave nothing
// of the world behind, whatever has become of the others. (The driver of a GPU keeps files open.)
void start_ranks(Processes& processes, int n_ranks,
                 const std::function<std::string(int rank, std::unique_ptr<World> world)>& run_rank) {
  const std::string address = unique_address();
  for (int rank = 0; rank < n_ranks; ++rank)
    processes.start([&] {
      const size_t files_before = num_open_files();
      const std::string report = run_rank(rank, join(rank, n_ranks, address));
      return report + (is_on_gpu() ? "" : what_is_left(files_before));
    });
}
// The same, with an exchange of this shape.
void start_ranks(Processes& processes, const Shape& shape, const RunOptions& run,
                 const std::function<std::string(int rank, EpHarness& harness)>& run_rank) {
  start_ranks(processes, shape.n_ranks, [&](int rank, std::unique_ptr<World> world) {
    EpHarness harness(std::move(world), shape, run);
    return run_rank(rank, harness);
  });
}

// Runs steps until one fails. `num_steps` counts those that did not.
Status run_until_one_fails(EpHarness& harness, const Shape& shape, const RunOptions& run,
                           std::atomic<int>& num_steps) {
  for (uint64_t i = 0;; ++i) {
    SWITCHYARD_RETURN_IF_ERROR(harness.enqueue_steps(as_run(make_step(shape, i % 4), run), 1));
    SWITCHYARD_RETURN_IF_ERROR(harness.ep().synchronize());
    ++num_steps;
  }
}

bool says_that_it_has_ended(const Status& status, int rank) {
  return status.message().find("rank " + std::to_string(rank) + " has ended") != std::string::npos;
}
bool says_that_the_context_is_lost(const Status& status) {
  return is_on_gpu() && status.message().find("is lost") != std::string::npos;
}

// Every rank is a process; each runs `num_steps` steps and checks its part of the results.
void check_in_processes(const Shape& shape, const RunOptions& run, int num_steps = 2) {
  Processes processes;
  start_ranks(processes, shape, run, [&](int, EpHarness& harness) -> std::string {
    for (int i = 0; i < num_steps; ++i) {
      const std::string difference =
          harness.run_and_compare(as_run(make_step(shape, 100 + static_cast<uint64_t>(i)), run));
      if (!difference.empty()) return difference;
    }
    return "";
  });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

using Variant = std::tuple<StepMode, Protocol>;
class ProcessSteps : public ::testing::TestWithParam<Variant> {
 protected:
  static RunOptions options() {
    const auto [mode, protocol] = GetParam();
    return {.target = target(), .mode = mode, .protocol = protocol, .timeout_ns = kPatienceNs};
  }
};
std::string variant_name(const ::testing::TestParamInfo<Variant>& info) {
  const auto [mode, protocol] = info.param;
  return testing_support::protocol_name(protocol) + (mode == StepMode::kSplit ? "Split" : "Fused");
}
INSTANTIATE_TEST_SUITE_P(Variants, ProcessSteps,
                         ::testing::Combine(::testing::Values(StepMode::kSplit, StepMode::kFused),
                                            testing_support::both_protocols()),
                         variant_name);

TEST_P(ProcessSteps, FourRanks) {
  check_in_processes({.n_ranks = 4, .n_experts = 12, .top_k = 3, .tokens_per_rank = {7, 0, 12, 5}}, options(),
                     4);
}

TEST_P(ProcessSteps, AFormatOfEachLayout) {
  for (const TokenFormatKind format : {TokenFormatKind::kFP8, TokenFormatKind::kMXFP8,
                                       TokenFormatKind::kNVFP4ByExpert, TokenFormatKind::kFP8UE8M0}) {
    RunOptions run = options();
    run.format = format;
    run.shared_expert = SharedExpert::kFused;
    run.combine_format = CombineFormat::kFP8;
    check_in_processes(
        {.n_ranks = 4, .n_experts = 8, .top_k = 2, .hidden = 256, .tokens_per_rank = {9, 4, 1, 7}}, run);
  }
}

TEST_P(ProcessSteps, OverTheWireBetweenGroups) {
  RunOptions run = options();
  run.p2p_world_size = 2;
  check_in_processes({.n_ranks = 4, .n_experts = 8, .top_k = 3, .tokens_per_rank = {9, 4, 0, 7}}, run, 3);
}

TEST_P(ProcessSteps, WithoutAllToAll) {
  RunOptions run = options();
  run.routing = Routing::kSkipAllToAll;
  check_in_processes({.n_ranks = 3, .n_experts = 9, .top_k = 4, .tokens_per_rank = {11, 11, 11}}, run, 3);
}

// Nothing keeps these ranks together but the all-reduce: one may be a step ahead of another.
TEST_P(ProcessSteps, StepsWithoutAllToAllAtEachRanksOwnPace) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 2, .tokens_per_rank = {2, 2, 2}};
  RunOptions run = options();
  run.routing = Routing::kSkipAllToAll;
  Processes processes;
  start_ranks(processes, shape, run, [&](int, EpHarness& harness) {
    std::vector<reference::Step> steps;
    for (uint64_t i = 0; i < 40; ++i) steps.push_back(as_run(make_step(shape, i), run));
    return harness.run_back_to_back(steps);
  });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

// As an engine has them that lays out prefill and decode differently; ranks need not have the same numbers.
TEST(ProcessWorlds, AProcessMayBeInTwoWorlds) {
  const std::string first = unique_address(), second = unique_address();
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 2, .tokens_per_rank = {5, 0, 7}};
  const RunOptions run{.target = target(), .timeout_ns = 20'000'000'000};
  RunOptions over_wire = run;
  over_wire.p2p_world_size = 1;
  over_wire.protocol = Protocol::kSlotted;
  Processes processes;
  for (int rank = 0; rank < shape.n_ranks; ++rank)
    processes.start([&, rank]() -> std::string {
      EpHarness one(join(rank, shape.n_ranks, first), shape, run);
      EpHarness other(join((rank + 1) % shape.n_ranks, shape.n_ranks, second), shape, over_wire);
      for (uint64_t i = 0; i < 3; ++i) {
        std::string difference = one.run_and_compare(as_run(make_step(shape, i), run));
        if (difference.empty())
          difference = other.run_and_compare(as_run(make_step(shape, 10 + i), over_wire));
        if (!difference.empty()) return difference;
      }
      return "";
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

// A field of the configuration that one rank has another value of, as it is written.
struct Difference {
  const char* field;
  void (*change)(ExpertParallelConfig& config);
  const char* changed;
  const char* usual;
};
const Difference kDifferences[] = {
    {"top_k", [](ExpertParallelConfig& config) { config.top_k = 3; }, "3", "2"},
    {"hidden", [](ExpertParallelConfig& config) { config.hidden = 128; }, "128", "64"},
    {"protocol", [](ExpertParallelConfig& config) { config.protocol = Protocol::kSlotted; }, "slotted",
     "automatic"},
    {"dispatch_format",
     [](ExpertParallelConfig& config) { config.dispatch_format = TokenFormatKind::kMXFP8; }, "mxfp8", "bf16"},
    {"combine_format", [](ExpertParallelConfig& config) { config.combine_format = CombineFormat::kFP8; },
     "fp8", "bf16"},
    {"shared_expert", [](ExpertParallelConfig& config) { config.shared_expert = SharedExpert::kFused; },
     "fused", "none"},
    {"routing", [](ExpertParallelConfig& config) { config.routing = Routing::kSkipAllToAll; },
     "skip-all-to-all", "all-to-all"},
    {"p2p_world_size", [](ExpertParallelConfig& config) { config.p2p_world_size = 1; }, "1", "0"},
};

TEST(ProcessWorlds, RanksThatDifferAreRefusedOnAllSidesWithTheFieldAndBothValues) {
  Processes processes;
  start_ranks(processes, 3, [](int rank, std::unique_ptr<World> world) {
    std::string messages;
    for (const Difference& difference : kDifferences) {
      ExpertParallelConfig config{.n_experts = 6, .top_k = 2, .hidden = 64, .max_tokens_per_rank = 4};
      if (rank == 1) difference.change(config);
      messages += ExpertParallel::create(*world, config).status().message() + "\n";
    }
    return messages;
  });
  for (const int rank : {0, 1, 2}) {
    std::string expected;
    for (const auto& [field, change, changed, usual] : kDifferences)
      expected += "rank " + std::to_string(rank == 1 ? 0 : 1) + " has another configuration than rank " +
                  std::to_string(rank) + ": " + field + " is " + (rank == 1 ? usual : changed) +
                  " there and " + (rank == 1 ? changed : usual) + " here\n";
    EXPECT_EQ(processes.report_of(static_cast<size_t>(rank)), expected);
  }
}

TEST(ProcessWorlds, ARankOfAnotherProcessIsRefusedByName) {
  Processes processes;
  start_ranks(processes, 2, [](int rank, std::unique_ptr<World> world) {
    const auto ep = must(
        ExpertParallel::create(*world, {.n_experts = 6, .top_k = 2, .hidden = 64, .max_tokens_per_rank = 4}));
    return ep->dispatch_async(1 - rank, {}).message();
  });
  EXPECT_EQ(processes.report_of(0), "dispatch_async: rank is 1; it lives in another process");
  EXPECT_EQ(processes.report_of(1), "dispatch_async: rank is 0; it lives in another process");
}

// A step behind a reset, with experts that return what they get; what is wrong, or nothing. `my_rank` is what
// the reset has made of `rank`.
std::string run_behind_reset(EpHarness& harness, int rank, int my_rank, const reference::Step& step) {
  const Rank& owner = harness.world().rank(rank);
  ExpertParallel& ep = harness.ep();
  const size_t num_groups = static_cast<size_t>(ep.num_groups()), r = static_cast<size_t>(my_rank);
  const Buffer<bf16> tokens = must(owner.upload(step.tokens[r]));
  const Buffer<int32_t> topk_ids = must(owner.upload(step.topk_ids[r]));
  const Buffer<float> topk_weights = must(owner.upload(step.topk_weights[r]));
  const Buffer<uint32_t> row_offsets = must(owner.allocate<uint32_t>(num_groups + 1));
  const Buffer<int32_t> expert_ids = must(owner.allocate<int32_t>(num_groups));
  const Buffer<bf16> output = must(owner.allocate<bf16>(step.tokens[r].size()));
  const RowBuffers rows = must(ep.row_buffers(my_rank));
  Status status = ep.dispatch(my_rank, {tokens.data(), topk_ids.data(), step.num_tokens(my_rank)},
                              {.rows = rows.encoded_rows,
                               .src_info = rows.src_info,
                               .max_rows = rows.max_rows,
                               .row_offsets = row_offsets.data(),
                               .expert_ids = expert_ids.data()});
  if (status.ok())
    status = ep.combine(my_rank, {rows.rows, rows.src_info},
                        {topk_ids.data(),
                         topk_weights.data(),
                         step.num_tokens(my_rank),
                         {CombineReduction::kWeighted, output.data()}});
  if (status.ok()) status = ep.synchronize(my_rank);
  if (!status.ok()) return status.to_string();
  const std::vector<bf16> expected =
      reference::combine_weighted(step, my_rank, &reference::identity_expert, nullptr);
  return must(output.download()) == expected ? "" : "the output is wrong";
}

// A rank is killed at a random moment of a random run: every survivor names it within a second, and all
// survivors go on together. SWITCHYARD_KILLS in the environment is the number of runs. On a machine that has
// more to do, one run in twenty may take longer.
TEST(ProcessWorlds, ARankThatIsKilledIsNamedAndTheOthersGoOn) {
  const char* num_kills = std::getenv("SWITCHYARD_KILLS");
  const int num_runs = num_kills != nullptr ? std::atoi(num_kills) : 40;
  int num_slow = 0;
  for (int run_idx = 0; run_idx < num_runs && !testing::Test::HasFailure(); ++run_idx) {
    std::mt19937 random(static_cast<unsigned>(run_idx));
    // Three ranks have 13 experts as unevenly as four; for 16 they need more seats than there is memory for.
    constexpr int kNumExperts[] = {16, 12, 13};
    const Shape shape{
        .n_ranks = 4, .n_experts = kNumExperts[run_idx % 3], .top_k = 3, .tokens_per_rank = {7, 3, 12, 5}};
    const Shape left{.n_ranks = 3, .n_experts = shape.n_experts, .top_k = 3, .tokens_per_rank = {12, 0, 5}};
    const RunOptions run{.target = target(),
                         .mode = run_idx % 2 == 0 ? StepMode::kSplit : StepMode::kFused,
                         .protocol = run_idx % 4 < 2 ? Protocol::kSlotted : Protocol::kDirect,
                         .p2p_world_size = run_idx % 8 < 4 ? 0 : 1,
                         .timeout_ns = kPatienceNs};
    const int victim = static_cast<int>(random() % 4);
    const auto delay = std::chrono::microseconds(random() % 20'000);
    std::vector<int> survivors = {0, 1, 2, 3};
    std::erase(survivors, victim);
    Processes processes;
    std::atomic<int>* const has_joined = processes.shared().stage;
    std::atomic<int>* const knows = has_joined + shape.n_ranks;
    start_ranks(processes, shape, run, [&](int rank, EpHarness& harness) -> std::string {
      has_joined[rank] = 1;
      std::atomic<int> num_steps = 0;
      const Status failed = run_until_one_fails(harness, shape, run, num_steps);
      knows[rank] = 1;
      // What a survivor says: who has ended; that it was stopped by another that knows is as good.
      if (!says_that_it_has_ended(failed, victim)) return failed.to_string();
      if (says_that_the_context_is_lost(failed))
        return "went on as one of 3";  // it cannot, but it named the rank, and ends in order
      if (const auto fault = harness.ep().fault(rank); fault && fault->late_rank != victim)
        return "the fault names rank " + std::to_string(fault->late_rank);
      if (const Status reset = harness.ep().reset(survivors); !reset.ok()) return reset.to_string();
      const int my_rank = rank - (rank > victim ? 1 : 0);
      // Not one of the steps before, whose rows may still be there.
      for (const uint64_t seed : {4, 5})
        if (const std::string wrong =
                run_behind_reset(harness, rank, my_rank, as_run(make_step(left, seed), run));
            !wrong.empty())
          return wrong;
      if (harness.ep().reset_to({0, 1, 2, 3}).code() != StatusCode::kUnavailable)
        return "a rank whose process has ended came back";
      return "went on as one of " + std::to_string(harness.ep().n_ranks());
    });
    ASSERT_TRUE(processes.wait_for_all({has_joined, 4}, 1));
    std::this_thread::sleep_for(delay);
    processes.send_signal(static_cast<size_t>(victim), SIGKILL);
    const auto killed = std::chrono::steady_clock::now();
    for (const int rank : survivors) ASSERT_TRUE(processes.wait_for(knows[rank], 1)) << "run " << run_idx;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - killed).count();
    if (seconds > 1) std::printf("run %d: survivors knew after %.2f s\n", run_idx, seconds);
    num_slow += seconds > 1 ? 1 : 0;
    for (int rank = 0; rank < shape.n_ranks; ++rank)
      EXPECT_EQ(processes.report_of(static_cast<size_t>(rank)),
                rank == victim ? "signal 9" : "went on as one of 3")
          << "run " << run_idx << ", rank " << rank << ", victim " << victim;
  }
  EXPECT_LE(num_slow, 1 + num_runs / 20);
}

// On a GPU this is a run without MPS: processes have contexts of their own.
TEST_P(ProcessSteps, ASurvivorOfTwoGoesOnAlone) {
  const Shape shape{.n_ranks = 2, .n_experts = 6, .top_k = 2, .tokens_per_rank = {5, 7}};
  const Shape alone{.n_ranks = 1, .n_experts = 6, .top_k = 2, .tokens_per_rank = {6}};
  const RunOptions run = options();
  for (const int victim : {0, 1}) {
    Processes processes;
    std::atomic<int>* const num_steps = processes.shared().stage;
    start_ranks(processes, shape, run, [&](int rank, EpHarness& harness) -> std::string {
      const Status failed = run_until_one_fails(harness, shape, run, num_steps[rank]);
      if (!says_that_it_has_ended(failed, victim)) return failed.to_string();
      if (says_that_the_context_is_lost(failed)) return "lost its context";
      if (const Status reset = harness.ep().reset({rank}); !reset.ok()) return reset.to_string();
      for (const uint64_t seed : {4, 5, 6})
        if (const std::string wrong = run_behind_reset(harness, rank, 0, make_step(alone, seed));
            !wrong.empty())
          return wrong;
      return "went on alone";
    });
    ASSERT_TRUE(processes.wait_for_all({num_steps, 2}, 2));
    processes.send_signal(static_cast<size_t>(victim), SIGKILL);
    const std::string report = processes.report_of(static_cast<size_t>(1 - victim));
    if (report == "lost its context") GTEST_SKIP() << "MPS runs, under which none can go on";
    EXPECT_EQ(report, "went on alone");
  }
}

// A process that is being ended closes its sockets first; what it has on a device goes later.
TEST(ProcessWorlds, AResetWaitsUntilNothingIsLeftOfTheProcess) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 2, .tokens_per_rank = {4, 4, 4}};
  const RunOptions run{.target = target(), .timeout_ns = kPatienceNs};
  Processes processes;
  std::atomic<int>* const has_seen_it = processes.shared().stage;
  std::atomic<int>& has_ended = has_seen_it[2];
  start_ranks(processes, shape, run, [&](int rank, EpHarness& harness) -> std::string {
    if (rank == 2) {
      for (int file = 3; file < 64; ++file) shutdown(file, SHUT_RDWR);  // those that are sockets
      if (!processes.wait_for_all({has_seen_it, 2}, 1)) return "the others have not seen it";
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for a reset that does not wait
      has_ended = 1;
      raise(SIGKILL);
    }
    while (transport_of(harness.world()).dead_ranks().empty()) std::this_thread::yield();
    has_seen_it[rank] = 1;
    if (const Status status = harness.ep().reset({0, 1}); !status.ok()) return status.to_string();
    return has_ended == 1 ? "" : "the process had not ended";
  });
  EXPECT_EQ(processes.report_of(0), "");
  EXPECT_EQ(processes.report_of(1), "");
}

TEST(ProcessWorlds, AWrongNumberOfConfigurationsIsToldToAll) {
  Processes processes;
  start_ranks(processes, 2, [](int rank, std::unique_ptr<World> world) {
    const ExpertParallelConfig config{.n_experts = 6, .top_k = 2, .hidden = 64, .max_tokens_per_rank = 4};
    return ExpertParallel::create(*world, std::vector<ExpertParallelConfig>(rank == 0 ? 2 : 3, config))
        .status()
        .message();
  });
  EXPECT_EQ(processes.report_of(1), "config_of_rank has 3 entries; the world has 2 ranks");
  EXPECT_EQ(processes.report_of(0), "rank 1: config_of_rank has 3 entries; the world has 2 ranks");
}

// Processes may be more than cores: one that waits must let those run that it waits for.
TEST(ProcessWorlds, ARankThatWaitsForAnotherProcessLeavesItTheCore) {
  if (is_on_gpu()) GTEST_SKIP() << "a GPU's blocks do not run on cores";
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .tokens_per_rank = {4, 4}};
  const RunOptions run{.n_sms = 1, .num_threads = 32, .timeout_ns = kPatienceNs};
  Processes processes;
  start_ranks(processes, shape, run, [&](int rank, EpHarness& harness) -> std::string {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    Status status = harness.enqueue_steps(make_step(shape, 1), 1);
    if (status.ok()) status = harness.ep().synchronize();
    if (!status.ok()) return status.to_string();
    getrusage(RUSAGE_SELF, &after);
    // Yields do not count.
    const long num_naps = after.ru_nvcsw - before.ru_nvcsw;
    return rank == 1 || num_naps > 50 ? "" : "it slept " + std::to_string(num_naps) + " times";
  });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

TEST(ProcessWorlds, ARankThatStopsIsNamedAtTheDeadline) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 2, .tokens_per_rank = {4, 4, 4}};
  const RunOptions run{.target = target(), .timeout_ns = 1'000'000'000};
  Processes processes;
  std::atomic<int>* const num_steps = processes.shared().stage;
  start_ranks(processes, shape, run, [&](int rank, EpHarness& harness) {
    return run_until_one_fails(harness, shape, run, num_steps[rank]).message();
  });
  ASSERT_TRUE(processes.wait_for_all({num_steps, 3}, 1));
  processes.send_signal(1, SIGSTOP);
  for (const size_t rank : {size_t{0}, size_t{2}})
    EXPECT_PRED_FORMAT2(testing::IsSubstring, "for rank 1", processes.report_of(rank));
  processes.send_signal(1, SIGKILL);
}

// Each rank is a world of its own to its kernels, so it reads its rows in its own memory.
TEST(ProcessWorlds, ARankThatSkipsTheAllToAllLendsRowsToItself) {
  if (is_on_gpu()) GTEST_SKIP() << "as on the host";
  Processes processes;
  start_ranks(processes, 2, [](int rank, std::unique_ptr<World> world) -> std::string {
    const Rank& here = world->rank(rank);
    const auto ep = must(ExpertParallel::create(*world, {.n_experts = 2,
                                                         .top_k = 1,
                                                         .hidden = 64,
                                                         .max_tokens_per_rank = 1,
                                                         .protocol = Protocol::kDirect,
                                                         .routing = Routing::kSkipAllToAll}));
    const auto tokens = must(here.allocate<bf16>(64)), output = must(here.allocate<bf16>(64));
    const auto rows = must(here.upload(std::vector<bf16>(64, to_bf16(2.0f + static_cast<float>(rank)))));
    const auto ids = must(here.upload(std::vector<int32_t>{rank}));  // the rank's own expert
    const auto weights = must(here.upload(std::vector<float>{1}));
    const auto offsets = must(here.allocate<uint32_t>(2));
    const auto expert_ids = must(here.allocate<int32_t>(1));
    const Status dispatched = ep->dispatch(rank, {tokens.data(), ids.data(), 1},
                                           {.row_offsets = offsets.data(), .expert_ids = expert_ids.data()});
    if (!dispatched.ok()) return dispatched.to_string();
    if (!must(ep->offer_expert_rows(rank, rows.data()))) return "the rows have to be copied";
    const Status combined = ep->combine(rank, {.expert_rows = rows.data()},
                                        {ids.data(), weights.data(), 1, {.output = output.data()}});
    if (!combined.ok()) return combined.to_string();
    if (const Status ended = ep->synchronize(); !ended.ok()) return ended.to_string();
    return to_float(must(output.download())[63]) == 2.0f + static_cast<float>(rank) ? "" : "other rows";
  });
  EXPECT_EQ(processes.reports(), std::vector<std::string>(2));
}

}  // namespace
}  // namespace switchyard
