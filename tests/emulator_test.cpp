// The emulator's contract: barriers join, collectives exchange, seeds replay, deadlocks are named.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "machine.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard {
namespace {

using emulator::Machine;
using emulator::MachineOptions;
using emulator::Mode;

template <typename Parameters>
Status run(Machine& machine, void (*kernel)(Parameters), const LaunchShape& shape, const Parameters& parameters) {
  emulator::Stream* stream = machine.create_stream();
  if (Status status = target::launch("kernel", kernel, shape, stream, parameters); !status.ok()) return status;
  return machine.synchronize(stream);
}

class Emulator : public testing::TestWithParam<Mode> {
 protected:
  Machine machine{MachineOptions{.mode = GetParam(), .seed = 7}};
};

INSTANTIATE_TEST_SUITE_P(Modes, Emulator, testing::Values(Mode::kFast, Mode::kSimulated),
                         [](const auto& info) { return info.param == Mode::kFast ? "Fast" : "Simulated"; });

TEST_P(Emulator, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(6 * 64, 0);
  auto kernel = +[](int* out) { out[target::block_idx() * target::num_threads() + target::thread_idx()] += 1; };
  ASSERT_TRUE(run(machine, kernel, {.num_blocks = 6, .num_threads = 64}, runs.data()).ok());
  EXPECT_EQ(runs, std::vector<int>(6 * 64, 1));
}

TEST_P(Emulator, SharedMemoryReversesABlockAcrossABarrier) {
  struct Params {
    int* data;
  };
  std::vector<int> data(256);
  std::iota(data.begin(), data.end(), 0);
  auto kernel = +[](Params p) {
    int* shared = &target::shared_storage<int>();
    shared[target::thread_idx()] = p.data[target::thread_idx()];
    target::sync_block();
    p.data[target::thread_idx()] = shared[target::num_threads() - 1 - target::thread_idx()];
  };
  ASSERT_TRUE(run(machine, kernel, {.num_threads = 256, .shared_bytes = 1024}, Params{data.data()}).ok());
  for (int i = 0; i < 256; ++i) EXPECT_EQ(data[i], 255 - i);
}

TEST_P(Emulator, CollectivesExchangeAmongLanes) {
  struct Params {
    int* sums;
    uint32_t* odd;
    int* scan;
  };
  std::vector<int> sums(64), scan(64);
  std::vector<uint32_t> odd(64);
  auto kernel = +[](Params p) {
    int sum = target::lane_idx();
    for (int mask = 16; mask > 0; mask /= 2) sum += target::shuffle_xor(sum, mask);
    int prefix = 1;
    for (int delta = 1; delta < kWarpSize; delta *= 2) {
      const int below = target::shuffle_up(prefix, delta);
      if (target::lane_idx() >= delta) prefix += below;
    }
    p.sums[target::thread_idx()] = sum + target::shuffle(target::warp_idx(), 5);
    p.odd[target::thread_idx()] = target::ballot(target::lane_idx() % 2 == 1);
    p.scan[target::thread_idx()] = prefix;
  };
  ASSERT_TRUE(run(machine, kernel, {.num_threads = 64}, Params{sums.data(), odd.data(), scan.data()}).ok());
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(sums[i], 496 + i / 32);
    EXPECT_EQ(odd[i], 0xaaaaaaaau);
    EXPECT_EQ(scan[i], i % 32 + 1);
  }
}

TEST_P(Emulator, SyncBlockAnyTellsAll) {
  std::vector<int> seen(96 * 2);
  auto kernel = +[](int* out) {
    out[target::thread_idx()] = target::sync_block_any(target::thread_idx() == 77);
    out[96 + target::thread_idx()] = target::sync_block_any(false);
  };
  ASSERT_TRUE(run(machine, kernel, {.num_threads = 96}, seen.data()).ok());
  for (int i = 0; i < 96; ++i) {
    EXPECT_EQ(seen[i], 1);
    EXPECT_EQ(seen[96 + i], 0);
  }
}

TEST_P(Emulator, NamedBarriersPairProducersWithConsumers) {
  // Warp 0 produces, warp 1 consumes, round after round: full = barrier 1, empty = barrier 2.
  struct Params {
    int* out;
  };
  std::vector<int> out(8 * 32);
  auto kernel = +[](Params p) {
    int* slot = &target::shared_storage<int>();
    for (int round = 0; round < 8; ++round) {
      if (target::warp_idx() == 0) {
        if (round > 0) target::named_barrier_sync(2, 64);
        slot[target::lane_idx()] = round * 100 + target::lane_idx();
        target::named_barrier_arrive(1, 64);
      } else {
        target::named_barrier_sync(1, 64);
        p.out[round * 32 + target::lane_idx()] = slot[31 - target::lane_idx()];
        if (round < 7) target::named_barrier_arrive(2, 64);
      }
    }
  };
  ASSERT_TRUE(run(machine, kernel, {.num_threads = 64, .shared_bytes = 128}, Params{out.data()}).ok());
  for (int round = 0; round < 8; ++round)
    for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(out[round * 32 + lane], round * 100 + 31 - lane);
}

TEST_P(Emulator, BulkCopiesCompleteOnTheirBarrier) {
  struct Params {
    const int* in;
    int* out;
  };
  struct Storage {
    alignas(16) int row[2][64];
    target::TransferBarrier full[2];
  };
  std::vector<int> in(64 * 6), out(64 * 6, -1);
  std::iota(in.begin(), in.end(), 1);
  alignas(16) static int in_rows[6][64], out_rows[6][64];
  std::copy(in.begin(), in.end(), &in_rows[0][0]);
  auto kernel = +[](Params p) {
    Storage& shared = target::shared_storage<Storage>();
    if (target::thread_idx() == 0)
      for (auto& barrier : shared.full) barrier.init(1);
    target::sync_block();
    for (int row = 0; row < 6; ++row) {
      const int stage = row % 2;
      if (target::thread_idx() == 0) {
        target::bulk_wait_read<0>();
        shared.full[stage].arrive_expect(256);
        target::bulk_load(shared.row[stage], p.in + row * 64, 256, shared.full[stage]);
      }
      const uint32_t parity = static_cast<uint32_t>(row / 2 % 2);
      target::wait_until([&] { return shared.full[stage].done(parity); }, kNoDeadline);
      shared.row[stage][target::thread_idx()] *= 3;
      target::fence_proxy_async();
      target::sync_block();
      if (target::thread_idx() == 0) {
        target::bulk_store(p.out + row * 64, shared.row[stage], 256);
        target::bulk_commit();
      }
    }
    target::bulk_wait<0>();
  };
  ASSERT_TRUE(run(machine, kernel, {.num_threads = 64, .shared_bytes = sizeof(Storage)},
                  Params{&in_rows[0][0], &out_rows[0][0]})
                  .ok());
  for (int i = 0; i < 64 * 6; ++i) EXPECT_EQ((&out_rows[0][0])[i], 3 * (i + 1));
}

TEST_P(Emulator, BlocksOfDifferentStreamsWaitForEachOther) {
  struct Params {
    uint32_t* mine;
    uint32_t* theirs;
    uint64_t* seen;
    uint64_t payload;
  };
  auto kernel = +[](Params p) {
    if (target::thread_idx() != 0) return;
    p.seen[0] = p.payload;
    target::st_release_system(p.mine, 1u);  // pairs with the peer's acquire below
    target::wait_until([&] { return target::ld_acquire_system(p.theirs) == 1; }, kNoDeadline);
  };
  uint32_t flags[2] = {0, 0};
  uint64_t seen[2] = {0, 0};
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(target::launch("peer", kernel, {.num_blocks = 1, .num_threads = 32}, machine.create_stream(),
                               Params{&flags[i], &flags[1 - i], &seen[i], 10u + i})
                    .ok());
  ASSERT_TRUE(machine.synchronize().ok());
  EXPECT_EQ(seen[0], 10u);
  EXPECT_EQ(seen[1], 11u);
}

TEST_P(Emulator, LaunchesOfOneStreamRunInOrder) {
  std::vector<int> value(1, 0);
  auto add_ten = +[](int* p) { if (target::thread_idx() == 0) *p += 10; };
  auto triple = +[](int* p) { if (target::thread_idx() == 0) *p *= 3; };
  emulator::Stream* stream = machine.create_stream();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(target::launch("add", add_ten, {}, stream, value.data()).ok());
    ASSERT_TRUE(target::launch("triple", triple, {}, stream, value.data()).ok());
  }
  ASSERT_TRUE(machine.synchronize(stream).ok());
  EXPECT_EQ(value[0], (10 * 3 + 10) * 3);
}

TEST_P(Emulator, AWaitEndsAtItsDeadline) {
  struct Params {
    bool* arrived;
    uint64_t* elapsed;
    uint32_t* never;
  };
  bool arrived = true;
  uint64_t elapsed = 0;
  uint32_t never = 0;
  auto kernel = +[](Params p) {
    if (target::thread_idx() != 0) return;
    const uint64_t start = target::now_ns();
    *p.arrived = target::wait_until([&] { return target::ld_acquire_system(p.never) != 0; }, start + 3'000'000);
    *p.elapsed = target::now_ns() - start;
  };
  ASSERT_TRUE(run(machine, kernel, {}, Params{&arrived, &elapsed, &never}).ok());
  EXPECT_FALSE(arrived);
  EXPECT_GE(elapsed, 3'000'000u);
}

TEST_P(Emulator, ADivergentBarrierIsADeadlockThatNamesThePlace) {
  auto kernel = +[](int*) {
    if (target::thread_idx() < 32)
      target::named_barrier_sync(1, 64);
    else
      target::sync_block();
  };
  const Status status = run(machine, kernel, {.num_threads = 64}, static_cast<int*>(nullptr));
  EXPECT_EQ(status.code(), StatusCode::kDeadlock);
  EXPECT_NE(status.message().find("32 thread(s) from 0 in named_barrier at emulator_test.cpp"), std::string::npos)
      << status.to_string();
  EXPECT_NE(status.message().find("32 thread(s) from 32 in sync_block at emulator_test.cpp"), std::string::npos)
      << status.to_string();
}

TEST_P(Emulator, AWaitThatNothingCanEndIsADeadlock) {
  Machine impatient(MachineOptions{.mode = GetParam(), .stuck_after_ns = 50'000'000});
  uint32_t never = 0;
  auto kernel = +[](uint32_t* p) {
    if (target::thread_idx() == 0) target::wait_until([&] { return target::ld_acquire_device(p) != 0; }, kNoDeadline);
    target::sync_warp();
  };
  const Status status = run(impatient, kernel, {}, &never);
  EXPECT_EQ(status.code(), StatusCode::kDeadlock);
  EXPECT_NE(status.message().find("1 thread(s) from 0 in wait_until at emulator_test.cpp"), std::string::npos);
  EXPECT_NE(status.message().find("31 thread(s) from 1 in sync_warp"), std::string::npos) << status.to_string();
  EXPECT_EQ(run(impatient, kernel, {}, &never).code(), StatusCode::kDeadlock) << "a failed machine stays failed";
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

TEST_P(Emulator, ABadLaunchShapeIsRefused) {
  auto kernel = +[](int*) {};
  EXPECT_EQ(run(machine, kernel, {.num_threads = 33}, static_cast<int*>(nullptr)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(machine, kernel, {.num_blocks = 0}, static_cast<int*>(nullptr)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(machine, kernel, {.num_threads = 2048}, static_cast<int*>(nullptr)).code(), StatusCode::kInvalidArgument);
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

}  // namespace
}  // namespace switchyard
