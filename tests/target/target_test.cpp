// The vocabulary of target/ as a contract: what each word promises, in kernels that are compiled for the host
// and, through cuda_tests.cu, for CUDA. What only the emulator promises is in emulator_test.cpp.
#include "switchyard/detail/target/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "target_fixture.hpp"

#define Vocabulary SWITCHYARD_SUITE(Vocabulary)

namespace switchyard {
namespace {

class Vocabulary : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, Vocabulary, testing_support::modes_of_target(), testing_support::mode_name);

// Threads, blocks and launches.

struct CountRunsParams {
  int* runs;      // [num_blocks][num_threads]
  int* geometry;  // [num_blocks][num_threads]
};

SWITCHYARD_KERNEL void count_runs(CountRunsParams params) {
  const int i = target::block_idx() * target::num_threads() + target::thread_idx();
  params.runs[i] += 1;
  params.geometry[i] = target::num_blocks() * 10000 + target::num_threads() * 10 + target::num_warps();
  params.geometry[i] +=
      (target::warp_idx() * kWarpSize + target::lane_idx() - target::thread_idx()) * 1000000;
}

TEST_P(Vocabulary, EveryThreadOfEveryBlockRunsOnceAndKnowsItsIndex) {
  const auto runs = zeros<int>(6 * 96), geometry = zeros<int>(6 * 96);
  run(count_runs, {.num_blocks = 6, .num_threads = 96}, CountRunsParams{runs.data(), geometry.data()});
  EXPECT_EQ(download(runs), std::vector<int>(6 * 96, 1));
  EXPECT_EQ(download(geometry), std::vector<int>(6 * 96, 6 * 10000 + 96 * 10 + 3));
}

SWITCHYARD_KERNEL void add_ten(int* value) {
  if (target::thread_idx() == 0) *value += 10;
}
SWITCHYARD_KERNEL void triple(int* value) {
  if (target::thread_idx() == 0) *value *= 3;
}

TEST_P(Vocabulary, LaunchesOfOneStreamRunInOrder) {
  const auto value = zeros<int>(1);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(launch(add_ten, {}, value.data()).ok());
    ASSERT_TRUE(launch(triple, {}, value.data()).ok());
  }
  EXPECT_EQ(download(value).front(), (10 * 3 + 10) * 3);
}

// As large as the parameters of a kernel that knows 64 ranks.
struct alignas(16) LargeParams {
  uint32_t words[768];
  uint32_t* sum_and_misalignment;  // [2]
};

SWITCHYARD_KERNEL void sum_parameters(LargeParams params) {
  if (target::thread_idx() != 0) return;
  for (int i = 0; i < 768; ++i) params.sum_and_misalignment[0] += params.words[i];
  params.sum_and_misalignment[1] =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(&params) % alignof(LargeParams));
}

TEST_P(Vocabulary, LargeParametersAreTakenAtTheCallAndArriveWholeAndAligned) {
  const auto result = zeros<uint32_t>(2);
  LargeParams params{{}, result.data()};
  std::iota(std::begin(params.words), std::end(params.words), 1u);
  ASSERT_TRUE(launch(sum_parameters, {}, params).ok());
  std::fill(std::begin(params.words), std::end(params.words), 0u);  // the launch has its own copy
  EXPECT_EQ(download(result), (std::vector<uint32_t>{768 * 769 / 2, 0}));
}

TEST_P(Vocabulary, ABadLaunchShapeIsRefusedAndTheStreamGoesOn) {
  const auto value = zeros<int>(1);
  EXPECT_FALSE(launch(add_ten, {.num_blocks = 0}, value.data()).ok());
  EXPECT_FALSE(launch(add_ten, {.num_threads = 0}, value.data()).ok());
  EXPECT_FALSE(launch(add_ten, {.num_threads = 33}, value.data()).ok());
  EXPECT_FALSE(launch(add_ten, {.num_threads = 2048}, value.data()).ok());
  run(add_ten, {}, value.data());
  EXPECT_EQ(download(value).front(), 10);
}

TEST_P(Vocabulary, ALaunchErrorNamesTheKernelAndTheShape) {
  const auto value = zeros<int>(1);
  const Status status = launch(add_ten, {.num_blocks = 3, .num_threads = 2048}, value.data());
  EXPECT_NE(status.message().find("kernel under test"), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find("3 blocks of 2048 threads"), std::string::npos) << status.to_string();
}

// Shared memory and barriers.

struct ReverseParams {
  int* data;  // [num_blocks][num_threads]
};

SWITCHYARD_KERNEL void reverse_each_block(ReverseParams params) {
  int* shared = &target::shared_storage<int>();
  int* data = params.data + target::block_idx() * target::num_threads();
  shared[target::thread_idx()] = data[target::thread_idx()];
  target::sync_block();
  data[target::thread_idx()] = shared[target::num_threads() - 1 - target::thread_idx()];
}

TEST_P(Vocabulary, SharedMemoryIsOneBlocksOwnAndSyncBlockPublishesIt) {
  std::vector<int> values(3 * 128), expected;
  std::iota(values.begin(), values.end(), 0);
  for (int block = 0; block < 3; ++block)
    for (int i = 127; i >= 0; --i) expected.push_back(block * 128 + i);
  const auto data = upload(values);
  run(reverse_each_block, {.num_blocks = 3, .num_threads = 128, .shared_bytes = 128 * sizeof(int)},
      ReverseParams{data.data()});
  EXPECT_EQ(download(data), expected);
}

struct LargeSharedParams {
  uint32_t num_words;
  uint32_t* num_wrong;
  uint32_t* misalignment;
};

SWITCHYARD_KERNEL void fill_shared(LargeSharedParams params) {
  uint32_t* words = &target::shared_storage<uint32_t>();
  for (uint32_t i = target::thread_idx(); i < params.num_words; i += target::num_threads())
    words[i] = i * 2654435761u;
  target::sync_block();
  // Every thread looks at words that another one wrote.
  for (uint32_t i = target::thread_idx(); i < params.num_words; i += target::num_threads())
    if (words[params.num_words - 1 - i] != (params.num_words - 1 - i) * 2654435761u)
      target::atomic_add_relaxed_device(params.num_wrong, 1u);
  if (target::thread_idx() == 0)
    *params.misalignment = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(words) % 128);
}

TEST_P(Vocabulary, ABlockMayHaveMoreThan48KilobytesOfSharedMemory) {
  const auto num_wrong = zeros<uint32_t>(1), misalignment = upload<uint32_t>({77});
  constexpr uint32_t kSharedBytes = 160 * 1024;
  // Not a multiple of the threads, so that readers and writers of a word differ.
  run(fill_shared, {.num_threads = 96, .shared_bytes = kSharedBytes},
      LargeSharedParams{kSharedBytes / sizeof(uint32_t), num_wrong.data(), misalignment.data()});
  EXPECT_EQ(download(num_wrong).front(), 0u);
  EXPECT_EQ(download(misalignment).front(), 0u) << "shared memory starts at a multiple of 128 bytes";
}

struct AnyParams {
  int* seen;  // [3 rounds][num_threads]
};

SWITCHYARD_KERNEL void sync_any_thrice(AnyParams params) {
  int* seen = params.seen + target::thread_idx();
  seen[0 * target::num_threads()] = target::sync_block_any(target::thread_idx() == 77);
  seen[1 * target::num_threads()] = target::sync_block_any(false);
  seen[2 * target::num_threads()] = target::sync_block_any(true);
}

TEST_P(Vocabulary, SyncBlockAnyTellsAllWhetherOneBroughtTrue) {
  const auto seen = zeros<int>(3 * 96);
  run(sync_any_thrice, {.num_threads = 96}, AnyParams{seen.data()});
  std::vector<int> expected(3 * 96, 1);
  std::fill(expected.begin() + 96, expected.begin() + 2 * 96, 0);
  EXPECT_EQ(download(seen), expected);
}

SWITCHYARD_KERNEL void rotate_within_warps(ReverseParams params) {
  int* shared = &target::shared_storage<int>() + target::warp_idx() * kWarpSize;
  const int lane_idx = target::lane_idx();
  for (int round = 0; round < kWarpSize; ++round) {
    shared[lane_idx] = params.data[target::thread_idx()];
    target::sync_warp();
    params.data[target::thread_idx()] = shared[(lane_idx + 1) % kWarpSize] + 100;
    target::sync_warp();
  }
}

TEST_P(Vocabulary, SyncWarpPublishesSharedMemoryToTheOtherLanes) {
  std::vector<int> values(64), expected(64);
  std::iota(values.begin(), values.end(), 0);
  for (int i = 0; i < 64; ++i) expected[i] = i + 32 * 100;  // once round the warp
  const auto data = upload(values);
  run(rotate_within_warps, {.num_threads = 64, .shared_bytes = 64 * sizeof(int)}, ReverseParams{data.data()});
  EXPECT_EQ(download(data), expected);
}

struct HandOverParams {
  int num_rounds;
  int* received;  // [num_rounds][kWarpSize]
};

// Warp 0 produces, warp 1 consumes, and warp 2 takes no part.
SWITCHYARD_KERNEL void hand_over_by_named_barriers(HandOverParams params) {
  constexpr uint32_t kFull = 1, kEmpty = 15, kNumThreads = 2 * kWarpSize;
  int* slot = &target::shared_storage<int>();
  const int lane_idx = target::lane_idx();
  for (int round = 0; round < params.num_rounds; ++round) {
    if (target::warp_idx() == 0) {
      if (round > 0) target::named_barrier_sync(kEmpty, kNumThreads);
      slot[lane_idx] = round * 100 + lane_idx;
      target::named_barrier_arrive(kFull, kNumThreads);
    } else if (target::warp_idx() == 1) {
      target::named_barrier_sync(kFull, kNumThreads);
      params.received[round * kWarpSize + lane_idx] = slot[kWarpSize - 1 - lane_idx];
      if (round + 1 < params.num_rounds) target::named_barrier_arrive(kEmpty, kNumThreads);
    }
  }
}

TEST_P(Vocabulary, NamedBarriersPairProducersWithConsumers) {
  constexpr int kNumRounds = 8;
  const auto received = zeros<int>(kNumRounds * 32);
  run(hand_over_by_named_barriers, {.num_threads = 96, .shared_bytes = 32 * sizeof(int)},
      HandOverParams{kNumRounds, received.data()});
  std::vector<int> expected;
  for (int round = 0; round < kNumRounds; ++round)
    for (int lane = 31; lane >= 0; --lane) expected.push_back(round * 100 + lane);
  EXPECT_EQ(download(received), expected);
}

// Warp collectives and bits.

template <typename T>
struct ShuffleParams {
  T* broadcast;   // [num_threads], each
  T* rotated;     // lane l has what lane l + 3 brought
  T* exchanged;   // lane l has what lane l ^ 5 brought
  T* from_below;  // lane l has what lane l - 4 brought; lanes under 4 their own
};

// What a thread brings: differs in the upper half of a wide type, and has a fraction where the type can hold
// it.
template <typename T>
SWITCHYARD_HD constexpr T brought_by(int thread_idx) {
  return static_cast<T>(thread_idx) * static_cast<T>(sizeof(T) == 8 ? 8589934592.0 : 1000.0) +
         static_cast<T>(0.5);
}

template <typename T>
SWITCHYARD_KERNEL void shuffle_values(ShuffleParams<T> params) {
  const int i = target::thread_idx();
  const T value = brought_by<T>(i);
  params.broadcast[i] = target::shuffle(value, 9);
  params.rotated[i] = target::shuffle(value, (target::lane_idx() + 3) % kWarpSize);
  params.exchanged[i] = target::shuffle_xor(value, 5);
  params.from_below[i] = target::shuffle_up(value, 4);
}

template <typename T>
class ShuffleCheck {
 public:
  ShuffleCheck(Rank& rank, size_t size)
      : broadcast(testing_support::must(rank.allocate<T>(size))),
        rotated(testing_support::must(rank.allocate<T>(size))),
        exchanged(testing_support::must(rank.allocate<T>(size))),
        from_below(testing_support::must(rank.allocate<T>(size))) {}

  ShuffleParams<T> params() const {
    return {broadcast.data(), rotated.data(), exchanged.data(), from_below.data()};
  }

  void check() const {
    const auto a = broadcast.download().value(), b = rotated.download().value();
    const auto c = exchanged.download().value(), d = from_below.download().value();
    for (int i = 0; i < static_cast<int>(a.size()); ++i) {
      const int warp_begin = i / 32 * 32, lane = i % 32;
      EXPECT_EQ(a[i], brought_by<T>(warp_begin + 9)) << "thread " << i;
      EXPECT_EQ(b[i], brought_by<T>(warp_begin + (lane + 3) % 32)) << "thread " << i;
      EXPECT_EQ(c[i], brought_by<T>(warp_begin + (lane ^ 5))) << "thread " << i;
      EXPECT_EQ(d[i], brought_by<T>(lane < 4 ? i : i - 4)) << "thread " << i;
    }
  }

 private:
  Buffer<T> broadcast, rotated, exchanged, from_below;
};

TEST_P(Vocabulary, ShufflesExchangeValuesAmongTheLanesOfAWarp) {
  const ShuffleCheck<int32_t> ints(rank(), 64);
  const ShuffleCheck<uint64_t> longs(rank(), 64);
  const ShuffleCheck<float> floats(rank(), 64);
  run(shuffle_values<int32_t>, {.num_threads = 64}, ints.params());
  run(shuffle_values<uint64_t>, {.num_threads = 64}, longs.params());
  run(shuffle_values<float>, {.num_threads = 64}, floats.params());
  ints.check();
  longs.check();
  floats.check();
}

struct BallotParams {
  uint32_t* masks;  // [kWarpSize rounds][num_threads]
};

SWITCHYARD_KERNEL void ballot_below(BallotParams params) {
  for (int round = 0; round < kWarpSize; ++round)
    params.masks[round * target::num_threads() + target::thread_idx()] =
        target::ballot(target::lane_idx() <= round && target::warp_idx() == 1);
}

TEST_P(Vocabulary, ABallotHoldsABitPerLaneOfItsOwnWarp) {
  const auto masks = upload(std::vector<uint32_t>(32 * 64, 0xdeadbeefu));
  run(ballot_below, {.num_threads = 64}, BallotParams{masks.data()});
  const std::vector<uint32_t> seen = download(masks);
  for (int round = 0; round < 32; ++round)
    for (int thread = 0; thread < 64; ++thread)
      EXPECT_EQ(seen[round * 64 + thread], thread < 32 ? 0u : 0xffffffffu >> (31 - round));
}

// Time, waiting, and dependent launches.

struct DeadlineParams {
  uint32_t* never;
  uint64_t wait_ns;
  uint32_t* arrived;  // [2]: a wait for what never comes, a wait for what is there although its time is over
  uint64_t* elapsed_ns;
};

SWITCHYARD_KERNEL void wait_in_vain(DeadlineParams params) {
  if (target::thread_idx() != 0) return;
  const uint64_t start_ns = target::now_ns();
  params.arrived[0] = target::wait_until([&] { return target::ld_acquire_system(params.never) != 0; },
                                         start_ns + params.wait_ns);
  *params.elapsed_ns = target::now_ns() - start_ns;
  params.arrived[1] =
      target::wait_until([&] { return target::ld_acquire_system(params.never) == 0; }, start_ns);
}

TEST_P(Vocabulary, AWaitEndsAtItsDeadlineAndNotBefore) {
  const auto never = zeros<uint32_t>(1), arrived = upload<uint32_t>({7, 7});
  const auto elapsed_ns = zeros<uint64_t>(1);
  run(wait_in_vain, {}, DeadlineParams{never.data(), 3'000'000, arrived.data(), elapsed_ns.data()});
  EXPECT_EQ(download(arrived), (std::vector<uint32_t>{0, 1}));
  EXPECT_GE(download(elapsed_ns).front(), 3'000'000u);
}

struct DependentParams {
  int num_values;
  const int* in;  // null in the first launch of the chain
  int* out;
};

SWITCHYARD_KERNEL void add_one_in_a_chain(DependentParams params) {
  target::grid_dependency_launch();  // the next launch may start while this one still writes
  target::grid_dependency_wait();    // everything the launch before wrote is visible from here on
  const int num_threads = target::num_blocks() * target::num_threads();
  for (int i = target::block_idx() * target::num_threads() + target::thread_idx(); i < params.num_values;
       i += num_threads) {
    // From the far end, which another block of the launch before wrote.
    params.out[i] = (params.in == nullptr ? i : params.in[params.num_values - 1 - i]) + 1;
  }
}

TEST_P(Vocabulary, ADependentLaunchSeesWhatItsPredecessorWroteAfterItsWait) {
  constexpr int kNumValues = 4096, kNumLaunches = 4;
  std::vector<Buffer<int>> stages;
  for (int i = 0; i < kNumLaunches; ++i) stages.push_back(zeros<int>(kNumValues));
  for (int i = 0; i < kNumLaunches; ++i) {
    // The words are harmless in an ordinary launch: the first one.
    const LaunchShape shape{.num_blocks = 4, .num_threads = 64, .programmatic_dependent = i > 0};
    const int* in = i == 0 ? nullptr : stages[i - 1].data();
    ASSERT_TRUE(launch(add_one_in_a_chain, shape, DependentParams{kNumValues, in, stages[i].data()}).ok());
  }
  const std::vector<int> seen = download(stages.back());
  for (int i = 0; i < kNumValues; ++i)
    ASSERT_EQ(seen[i], kNumValues - 1 - i + kNumLaunches) << "value " << i;  // an odd number of reversals
}

}  // namespace
}  // namespace switchyard

#undef Vocabulary
