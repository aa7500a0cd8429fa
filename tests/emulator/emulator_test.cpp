// What the emulator promises beyond the vocabulary (target_test.cpp): seeds replay, time is virtual where it
// is simulated, deadlocks are named, blocks wait for room, what a kernel does wrong ends as a Status.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <vector>

#include "machine.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard {
namespace {

using emulator::Machine;
using emulator::MachineOptions;
using emulator::Mode;

template <typename Parameters>
Status run(Machine& machine, void (*kernel)(Parameters), const LaunchShape& shape,
           const Parameters& parameters) {
  emulator::Stream* stream = machine.create_stream();
  if (Status status = target::launch("kernel", kernel, shape, stream, parameters); !status.ok())
    return status;
  return machine.synchronize(stream);
}

class Emulator : public testing::TestWithParam<Mode> {
 protected:
  Machine machine{MachineOptions{.mode = GetParam(), .seed = 7}};
};

INSTANTIATE_TEST_SUITE_P(Modes, Emulator, testing::Values(Mode::kFast, Mode::kSimulated),
                         [](const auto& info) { return info.param == Mode::kFast ? "Fast" : "Simulated"; });

TEST_P(Emulator, ADivergentBarrierIsADeadlockThatNamesTheLocation) {
  auto kernel = +[](int*) {
    if (target::thread_idx() < 32)
      target::named_barrier_sync(1, 64);
    else
      target::sync_block();
  };
  const Status status = run(machine, kernel, {.num_threads = 64}, static_cast<int*>(nullptr));
  EXPECT_EQ(status.code(), StatusCode::kDeadlock);
  EXPECT_NE(status.message().find("32 thread(s) from 0 in named_barrier at emulator_test.cpp"),
            std::string::npos)
      << status.to_string();
  EXPECT_NE(status.message().find("32 thread(s) from 32 in sync_block at emulator_test.cpp"),
            std::string::npos)
      << status.to_string();
}

TEST_P(Emulator, AWaitThatNothingCanEndIsADeadlock) {
  Machine impatient(MachineOptions{.mode = GetParam(), .stuck_after_ns = 50'000'000});
  uint32_t never = 0;
  auto kernel = +[](uint32_t* p) {
    if (target::thread_idx() == 0)
      target::wait_until([&] { return target::ld_acquire_device(p) != 0; }, kNoDeadline);
    target::sync_warp();
  };
  const Status status = run(impatient, kernel, {}, &never);
  EXPECT_EQ(status.code(), StatusCode::kDeadlock);
  EXPECT_NE(status.message().find("1 thread(s) from 0 in wait_until at emulator_test.cpp"),
            std::string::npos);
  EXPECT_NE(status.message().find("31 thread(s) from 1 in sync_warp"), std::string::npos)
      << status.to_string();
  EXPECT_EQ(run(impatient, kernel, {}, &never).code(), StatusCode::kDeadlock)
      << "a failed machine stays failed";
}

TEST_P(Emulator, GoingFromOneWaitToTheNextIsProgress) {
  // Two threads that do nothing but answer each other: what one writes between two waits lets the other go
  // on.
  struct Params {
    uint32_t* turn;
  };
  auto kernel = +[](Params p) {
    if (target::thread_idx() != 0) return;
    const uint32_t me = static_cast<uint32_t>(target::block_idx());
    for (uint32_t round = 0; round < 50; ++round) {
      target::wait_until([&] { return target::ld_acquire_device(p.turn) == 2 * round + me; }, kNoDeadline);
      target::st_release_device(p.turn, 2 * round + me + 1);  // pairs with the other block's acquire
    }
  };
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Machine seeded(MachineOptions{.mode = GetParam(), .seed = seed});
    uint32_t turn = 0;
    const Status status = run(seeded, kernel, {.num_blocks = 2}, Params{&turn});
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.to_string();
    EXPECT_EQ(turn, 100u);
  }
}

TEST_P(Emulator, LanesThatDisagreeAreAnError) {
  auto kernel = +[](int*) {
    if (target::lane_idx() < 16)
      target::ballot(true);
    else
      target::shuffle(1, 0);
  };
  const Status status = run(machine, kernel, {}, static_cast<int*>(nullptr));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("disagree"), std::string::npos) << status.to_string();
}

TEST_P(Emulator, ManyMoreBlocksThanFitRunInTurn) {
  Machine small(MachineOptions{.mode = GetParam(), .max_resident_threads = 128});
  std::vector<uint32_t> count(1);
  auto kernel = +[](uint32_t* p) { target::atomic_add_relaxed_device(p, 1u); };
  ASSERT_TRUE(run(small, kernel, {.num_blocks = 20, .num_threads = 64}, count.data()).ok());
  EXPECT_EQ(count[0], 20u * 64);
}

// Stacks. Block 1's thread 5 needs more of it than there is, after all threads have begun to use theirs.

template <int kBytes>
[[gnu::noinline]] int touch_lowest_of() {
  volatile char frame[kBytes];
  volatile int lowest = 0;  // the compiler must not know that the rest is not used
  frame[lowest] = 1;
  return frame[lowest];
}
// Neither a tail call nor a loop, and without an end that comes.
[[gnu::noinline]] int recurse(volatile int* depth) {
  if (*depth < 0) return 0;
  volatile char frame[512];
  frame[0] = static_cast<char>(*depth);
  *depth = *depth + 1;
  return recurse(depth) + frame[0];
}

template <typename Overflow>
void expect_overflow(Mode mode, Overflow) {
  Machine machine(MachineOptions{.mode = mode});
  auto kernel = +[](uint32_t* num_damaged) {
    volatile uint32_t kept[64];
    for (uint32_t i = 0; i < 64; ++i) kept[i] = i * 7;
    target::sync_block();
    if (target::block_idx() == 1 && target::thread_idx() == 5) Overflow()();
    for (uint32_t i = 0; i < 64; ++i)
      if (kept[i] != i * 7) target::atomic_add_relaxed_device(num_damaged, 1u);
    target::sync_block();
  };
  uint32_t num_damaged = 0;
  const Status status = run(machine, kernel, {.num_blocks = 2, .num_threads = 64}, &num_damaged);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("thread 5 of block 1 of kernel overflowed its stack of"), std::string::npos)
      << status.to_string();
  EXPECT_EQ(num_damaged, 0u) << "a neighbour's stack was written";

  // The stack that overflowed serves others after that.
  Machine next(MachineOptions{.mode = mode});
  uint32_t num_arrived = 0;
  auto plain = +[](uint32_t* p) {
    target::sync_block();
    target::atomic_add_relaxed_device(p, 1u);
  };
  ASSERT_TRUE(run(next, plain, {.num_blocks = 2, .num_threads = 64}, &num_arrived).ok());
  EXPECT_EQ(num_arrived, 128u);
}

TEST_P(Emulator, AFrameLargerThanTheStackIsAnErrorThatNamesTheThread) {
  expect_overflow(GetParam(), [] { touch_lowest_of<300 * 1024>(); });
}

TEST_P(Emulator, AFrameThatWouldReachBeyondTheGuardOfTheStackIsAnError) {
  expect_overflow(GetParam(), [] { touch_lowest_of<4 * 1024 * 1024>(); });
}

TEST_P(Emulator, EndlessRecursionIsAnError) {
  expect_overflow(GetParam(), [] {
    volatile int depth = 0;
    recurse(&depth);
  });
}

using EmulatorDeathTest = Emulator;
INSTANTIATE_TEST_SUITE_P(Modes, EmulatorDeathTest, testing::Values(Mode::kFast, Mode::kSimulated),
                         [](const auto& info) { return info.param == Mode::kFast ? "Fast" : "Simulated"; });

TEST_P(EmulatorDeathTest, AFaultThatIsNoOverflowGoesToWhoHandledFaultsBefore) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // no machine was there before the handler
  const auto fault = [] {
    struct sigaction action = {};
    action.sa_handler = [](int) { _exit(42); };
    sigaction(SIGSEGV, &action, nullptr);
    Machine first(MachineOptions{.mode = GetParam()});
    auto kernel = +[](volatile int* p) { *p = 1; };
    static_cast<void>(run(first, kernel, {}, reinterpret_cast<volatile int*>(uintptr_t{64})));
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(42), "");
}

TEST_P(Emulator, AnExceptionOfAKernelIsAnErrorThatNamesTheThread) {
  auto kernel = +[](int*) {
    if (target::thread_idx() == 3) throw std::runtime_error("no such row");
    target::sync_block();
  };
  const Status status = run(machine, kernel, {}, static_cast<int*>(nullptr));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("thread 3 of block 0 of kernel threw an exception: no such row"),
            std::string::npos)
      << status.to_string();

  Machine next(MachineOptions{.mode = GetParam()});
  auto odd = +[](int*) { throw 1; };
  EXPECT_EQ(run(next, odd, {}, static_cast<int*>(nullptr)).code(), StatusCode::kInternal);
}

TEST_P(Emulator, AKernelThatRunsOutOfMemorySaysSo) {
  auto kernel = +[](int*) {
    if (target::thread_idx() == 3) throw std::bad_alloc();
    target::sync_block();
  };
  const Status status = run(machine, kernel, {}, static_cast<int*>(nullptr));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("thread 3 of block 0 of kernel"), std::string::npos) << status.to_string();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes
TEST_P(EmulatorDeathTest, BlocksForWhichThereIsNoMemoryAreAnError) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto exhaust = [] {
    Machine small(MachineOptions{.mode = GetParam(), .num_workers = 2});
    const rlimit limit{400'000'000, 400'000'000};
    setrlimit(RLIMIT_AS, &limit);
    auto kernel = +[](int*) { target::sync_block(); };
    const Status status =
        run(small, kernel, {.num_blocks = 64, .num_threads = 1024}, static_cast<int*>(nullptr));
    _exit(status.code() == StatusCode::kResourceExhausted ? 42 : 1);
  };
  EXPECT_EXIT(exhaust(), testing::ExitedWithCode(42), "");
}
#endif

#if defined(__SANITIZE_THREAD__)
// Each thread takes another's word, with a barrier in between or without one.
template <bool kWaits>
void take_from_another(uint32_t* words) {
  const uint32_t thread = target::thread_idx();
  words[thread] = thread;
  if (kWaits) target::sync_block();
  words[64 + thread] = words[(thread + 32) % 64];
}

TEST_P(EmulatorDeathTest, ThreadSanitizerSeesWhoDoesNotWaitForAnotherThread) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto run_kernel = [](void (*kernel)(uint32_t*)) {
    Machine first(MachineOptions{.mode = GetParam()});
    std::vector<uint32_t> words(128);
    exit(run(first, kernel, {.num_threads = 64}, words.data()).ok() ? 0 : 1);
  };
  EXPECT_EXIT(run_kernel(take_from_another<true>), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run_kernel(take_from_another<false>), testing::ExitedWithCode(66), "data race");
}
#endif

TEST_P(Emulator, AWarpThatLooksAgainAndAgainLeavesOthersTheirTurn) {
  // Not inside wait_until: only turns bring the other block to its store.
  auto kernel = +[](uint32_t* flag) {
    if (target::block_idx() == 1) {
      target::sync_block();
      if (target::thread_idx() == 0) target::st_release_device(flag, 1u);  // pairs with the acquire below
    } else {
      while (target::ballot(target::ld_acquire_device(flag) != 0) == 0) {
      }
    }
  };
  Machine one_worker(MachineOptions{.mode = GetParam(), .num_workers = 1});
  uint32_t flag = 0;
  EXPECT_TRUE(run(one_worker, kernel, {.num_blocks = 2, .num_threads = 64}, &flag).ok());
}

// A kernel whose result depends on the interleaving: who comes when.
std::pair<std::vector<uint32_t>, uint64_t> ordered_arrivals(uint64_t seed) {
  struct Params {
    uint32_t* counter;
    uint32_t* order;
  };
  Machine machine(MachineOptions{.mode = Mode::kSimulated, .seed = seed});
  uint32_t counter = 0;
  std::vector<uint32_t> order(4 * 32);
  auto kernel = +[](Params p) {
    const uint32_t place = target::atomic_add_relaxed_device(p.counter, 1u);
    p.order[place] = static_cast<uint32_t>(target::block_idx() * 32 + target::thread_idx());
  };
  EXPECT_TRUE(run(machine, kernel, {.num_blocks = 4}, Params{&counter, order.data()}).ok());
  return {order, machine.trace_hash()};
}

TEST(SimulatedMode, TheSameSeedGivesTheSameTraceAndAnotherSeedAnother) {
  EXPECT_EQ(ordered_arrivals(1), ordered_arrivals(1));
  EXPECT_NE(ordered_arrivals(1).first, ordered_arrivals(2).first);
  EXPECT_NE(ordered_arrivals(1).second, ordered_arrivals(2).second);
}

// A launch begins when the one in front of it has ended, whatever other streams still do: a kernel of many
// steps sees the second launch of a stream beside it.
TEST(SimulatedMode, ALaunchBeginsBesideKernelsThatStillRun) {
  struct Params {
    uint32_t* has_begun;
    uint32_t* num_seen;
  };
  const auto watches = +[](Params p) {
    if (target::thread_idx() != 0) return;
    for (int i = 0; i < 100; ++i) *p.num_seen += target::ld_relaxed_device(p.has_begun);
  };
  const auto begins = +[](Params p) { target::st_relaxed_device(p.has_begun, 1u); };
  const auto is_short = +[](Params) {};
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Machine machine(MachineOptions{.mode = Mode::kSimulated, .seed = seed});
    auto* const long_stream = machine.create_stream();
    auto* const other = machine.create_stream();
    uint32_t has_begun = 0, num_seen = 0;
    const Params params{&has_begun, &num_seen};
    ASSERT_TRUE(target::launch("watches", watches, {}, long_stream, params).ok());
    ASSERT_TRUE(target::launch("is_short", is_short, {}, other, params).ok());
    ASSERT_TRUE(target::launch("begins", begins, {}, other, params).ok());
    ASSERT_TRUE(machine.synchronize().ok());
    EXPECT_GT(num_seen, 0u) << "seed " << seed;
  }
}

TEST(SimulatedMode, TimeIsVirtualAndJumpsToTheNextDeadline) {
  struct Params {
    uint32_t* never;
    uint64_t* elapsed_ns;
  };
  constexpr uint64_t kOneDayNs = 86'400'000'000'000;  // nobody waits for it
  Machine machine(MachineOptions{.mode = Mode::kSimulated});
  uint32_t never = 0;
  uint64_t elapsed_ns = 0;
  auto kernel = +[](Params p) {
    if (target::thread_idx() != 0) return;
    const uint64_t start_ns = target::now_ns();
    target::wait_until([&] { return target::ld_acquire_system(p.never) != 0; }, start_ns + kOneDayNs);
    *p.elapsed_ns = target::now_ns() - start_ns;
  };
  ASSERT_TRUE(run(machine, kernel, {}, Params{&never, &elapsed_ns}).ok());
  EXPECT_GE(elapsed_ns, kOneDayNs);
}

}  // namespace
}  // namespace switchyard
