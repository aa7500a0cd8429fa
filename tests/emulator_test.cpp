// What the emulator promises beyond the vocabulary (target_test.cpp): seeds replay, time is virtual where it
// is simulated, deadlocks are named, blocks wait for room.
#include <gtest/gtest.h>

#include <vector>

#include "machine.hpp"
#include "switchyard/target/target.hpp"

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

TEST_P(Emulator, ADivergentBarrierIsADeadlockThatNamesThePlace) {
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
