// The vocabulary of target/ as a contract, continued: atomics and the order they give. Compiled for the host
// and, through cuda_tests.cu, for CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "switchyard/detail/target/target.hpp"
#include "target_fixture.hpp"

#define Memory SWITCHYARD_SUITE(Memory)

namespace switchyard {
namespace {

class Memory : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, Memory, testing_support::modes_of_target(), testing_support::mode_name);

// Every atomic word, by name.
enum class AddWord { kRelaxedBlock, kRelaxedDevice, kReleaseDevice, kAcqRelDevice, kReleaseSystem };
constexpr AddWord kAddWords[] = {AddWord::kRelaxedBlock, AddWord::kRelaxedDevice, AddWord::kReleaseDevice,
                                 AddWord::kAcqRelDevice, AddWord::kReleaseSystem};

template <typename T>
SWITCHYARD_DEVICE T add_by(AddWord word, T* p, T value) {
  switch (word) {
    case AddWord::kRelaxedBlock:
      return target::atomic_add_relaxed_block(p, value);
    case AddWord::kRelaxedDevice:
      return target::atomic_add_relaxed_device(p, value);
    case AddWord::kReleaseDevice:
      return target::atomic_add_release_device(p, value);
    case AddWord::kAcqRelDevice:
      return target::atomic_add_acq_rel_device(p, value);
    case AddWord::kReleaseSystem:
      return target::atomic_add_release_system(p, value);
  }
  return T{};
}

template <typename T>
struct AddParams {
  AddWord word;
  T step;
  T* counters;  // [num_blocks]; the words of device and system scope use the first only
  T* previous;  // [num_blocks][num_threads]
};

template <typename T>
SWITCHYARD_KERNEL void add_from_every_thread(AddParams<T> params) {
  T* counter = params.counters + (params.word == AddWord::kRelaxedBlock ? target::block_idx() : 0);
  const int i = target::block_idx() * target::num_threads() + target::thread_idx();
  params.previous[i] = add_by(params.word, counter, params.step);
}

constexpr int kAddBlocks = 4, kAddThreads = 64;

// Whatever the order of arrival, the values found are start, start + step, ... each once.
template <typename T>
void check_adds(const AddParams<T>& params, const std::vector<T>& counters, std::vector<T> previous,
                T start) {
  const int num_groups = params.word == AddWord::kRelaxedBlock ? kAddBlocks : 1;
  const int group_size = kAddBlocks * kAddThreads / num_groups;
  for (int group = 0; group < num_groups; ++group) {
    const auto begin = previous.begin() + group * group_size;
    std::sort(begin, begin + group_size, [&](T a, T b) { return params.step > T{0} ? a < b : a > b; });
    for (int i = 0; i < group_size; ++i)
      ASSERT_EQ(begin[i], static_cast<T>(start + static_cast<T>(i) * params.step))
          << "word " << static_cast<int>(params.word) << ", arrival " << i;
    EXPECT_EQ(counters[group], static_cast<T>(start + static_cast<T>(group_size) * params.step));
  }
}

template <typename T>
class AddCheck {
 public:
  AddCheck(Rank& rank, AddWord word, T start, T step)
      : start_(start),
        counters_(testing_support::must(rank.upload(std::vector<T>(kAddBlocks, start)))),
        previous_(testing_support::must(rank.allocate<T>(kAddBlocks * kAddThreads))),
        params_{word, step, counters_.data(), previous_.data()} {}

  const AddParams<T>& params() const { return params_; }
  void check() const {
    check_adds(params_, counters_.download().value(), previous_.download().value(), start_);
  }

 private:
  T start_;
  Buffer<T> counters_, previous_;
  AddParams<T> params_;
};

TEST_P(Memory, EveryAtomicAddIsIndivisibleAndReturnsWhatItFound) {
  for (const AddWord word : kAddWords) {
    const AddCheck<uint32_t> up(rank(), word, 5u, 3u);
    const AddCheck<int32_t> down(rank(), word, 7, -2);
    const AddCheck<uint64_t> wide(rank(), word, (uint64_t{1} << 32) - 9, 1u);  // carries into the upper half
    run(add_from_every_thread<uint32_t>, {.num_blocks = kAddBlocks, .num_threads = kAddThreads}, up.params());
    run(add_from_every_thread<int32_t>, {.num_blocks = kAddBlocks, .num_threads = kAddThreads},
        down.params());
    run(add_from_every_thread<uint64_t>, {.num_blocks = kAddBlocks, .num_threads = kAddThreads},
        wide.params());
    up.check();
    down.check();
    wide.check();
  }
}

template <typename T>
struct ElectionParams {
  T* winner;  // 0 while there is none
  T* num_winners;
  T* counter;
};

// Everyone tries to be the first, then everyone adds one by a loop of compare-exchanges.
template <typename T>
SWITCHYARD_KERNEL void elect_and_count(ElectionParams<T> params) {
  const T candidate = static_cast<T>(target::block_idx() * target::num_threads() + target::thread_idx() + 1);
  if (target::atomic_cas_acq_rel_system(params.winner, T{0}, candidate))
    target::atomic_add_relaxed_device(params.num_winners, T{1});
  bool added = false;
  while (!added) {
    const T seen = target::ld_relaxed_device(params.counter);
    added = target::atomic_cas_acq_rel_system(params.counter, seen, static_cast<T>(seen + 1));
  }
}

TEST_P(Memory, ACompareExchangeSucceedsOnlyOnTheExpectedValue) {
  const auto words = zeros<uint32_t>(3);
  run(elect_and_count<uint32_t>, {.num_blocks = 4, .num_threads = 64},
      ElectionParams<uint32_t>{words.data(), words.data() + 1, words.data() + 2});
  const auto wide_words = zeros<uint64_t>(3);
  run(elect_and_count<uint64_t>, {.num_blocks = 4, .num_threads = 64},
      ElectionParams<uint64_t>{wide_words.data(), wide_words.data() + 1, wide_words.data() + 2});
  const auto check = [](const auto& seen) {
    EXPECT_GE(seen[0], 1u);
    EXPECT_LE(seen[0], 256u);
    EXPECT_EQ(seen[1], 1u) << "one thread, and no other, finds the word unset";
    EXPECT_EQ(seen[2], 256u) << "no increment is lost";
  };
  check(download(words));
  check(download(wide_words));
}

struct IncWrapParams {
  uint32_t* counter;
  uint32_t* num_found;  // [8]: how often each value was found
  uint32_t last;
};

SWITCHYARD_KERNEL void increment_and_wrap(IncWrapParams params) {
  const uint32_t found = target::block_idx() % 2 == 0
                             ? target::atomic_inc_wrap_relaxed_device(params.counter, params.last)
                             : target::atomic_inc_wrap_acq_rel_device(params.counter, params.last);
  target::atomic_add_relaxed_device(params.num_found + (found < 8 ? found : 7), 1u);
}

TEST_P(Memory, AWrappingIncrementGoesRoundAndReturnsWhatItFound) {
  const auto counter = zeros<uint32_t>(1), num_found = zeros<uint32_t>(8);
  run(increment_and_wrap, {.num_blocks = 4, .num_threads = 64},
      IncWrapParams{counter.data(), num_found.data(), 4});
  EXPECT_EQ(download(num_found), (std::vector<uint32_t>{52, 51, 51, 51, 51, 0, 0, 0}));
  EXPECT_EQ(download(counter).front(), 256u % 5);
  const auto beyond = upload<uint32_t>({40}), none = zeros<uint32_t>(1);
  run(increment_and_wrap, {}, IncWrapParams{beyond.data(), num_found.data(), 31});
  EXPECT_EQ(download(beyond).front(), 31u) << "40 became 0 first";
  run(increment_and_wrap, {}, IncWrapParams{none.data(), num_found.data(), 0});
  EXPECT_EQ(download(none).front(), 0u);
}

// Order.

enum class Signal { kStoreDevice, kStoreSystem, kAddDevice, kAddAcqRelDevice, kAddSystem, kCasSystem };
constexpr Signal kSignals[] = {Signal::kStoreDevice,     Signal::kStoreSystem, Signal::kAddDevice,
                               Signal::kAddAcqRelDevice, Signal::kAddSystem,   Signal::kCasSystem};

struct MessageParams {
  Signal signal;
  int num_rounds;
  uint32_t* payload;  // [num_threads]
  uint32_t* full;     // rounds written
  uint32_t* empty;    // rounds read
  uint32_t* num_wrong;
};

// Raises `flag` from round to round + 1, with the release of the word under test.
SWITCHYARD_DEVICE void raise_flag(Signal signal, uint32_t* flag, uint32_t round) {
  switch (signal) {
    case Signal::kStoreDevice:
      target::st_release_device(flag, round + 1);
      break;
    case Signal::kStoreSystem:
      target::st_release_system(flag, round + 1);
      break;
    case Signal::kAddDevice:
      target::atomic_add_release_device(flag, 1u);
      break;
    case Signal::kAddAcqRelDevice:
      target::atomic_add_acq_rel_device(flag, 1u);
      break;
    case Signal::kAddSystem:
      target::atomic_add_release_system(flag, 1u);
      break;
    case Signal::kCasSystem:
      target::atomic_cas_acq_rel_system(flag, round, round + 1);
      break;
  }
}
// One thread waits, with the acquire of the same scope; the barrier passes on to its block what it acquired.
SWITCHYARD_DEVICE void await_flag(Signal signal, const uint32_t* flag, uint32_t value) {
  if (target::thread_idx() == 0) {
    const bool is_device =
        signal == Signal::kStoreDevice || signal == Signal::kAddDevice || signal == Signal::kAddAcqRelDevice;
    target::wait_until(
        [&] {
          return (is_device ? target::ld_acquire_device(flag) : target::ld_acquire_system(flag)) == value;
        },
        kNoDeadline);
  }
  target::sync_block();
}

// Block 0 writes plain memory that block 1 reads; the flags alone keep them apart.
SWITCHYARD_KERNEL void pass_messages(MessageParams params) {
  const int i = target::thread_idx();
  for (uint32_t round = 0; round < static_cast<uint32_t>(params.num_rounds); ++round) {
    if (target::block_idx() == 0) {
      await_flag(params.signal, params.empty, round);
      params.payload[i] = round * 1000 + i;
      target::sync_block();
      // release: publishes the payload of all threads of this block; pairs with block 1's await_flag(full)
      if (i == 0) raise_flag(params.signal, params.full, round);
    } else {
      await_flag(params.signal, params.full, round + 1);
      const uint32_t other = static_cast<uint32_t>(target::num_threads() - 1 - i);
      if (params.payload[other] != round * 1000 + other)
        target::atomic_add_relaxed_device(params.num_wrong, 1u);
      target::sync_block();
      // release: the payload has been read; pairs with block 0's await_flag(empty)
      if (i == 0) raise_flag(params.signal, params.empty, round);
    }
  }
}

TEST_P(Memory, WhatIsWrittenBeforeAReleaseIsSeenAfterTheAcquireByAnotherBlock) {
  for (const Signal signal : kSignals) {
    // The flags lie in cache lines of their own.
    const auto payload = zeros<uint32_t>(64), flags = zeros<uint32_t>(128);
    run(pass_messages, {.num_blocks = 2, .num_threads = 64},
        MessageParams{signal, 20, payload.data(), flags.data(), flags.data() + 32, flags.data() + 64});
    const std::vector<uint32_t> seen = download(flags);
    EXPECT_EQ(seen[0], 20u);
    EXPECT_EQ(seen[32], 20u);
    EXPECT_EQ(seen[64], 0u) << "stale values seen with signal " << static_cast<int>(signal);
  }
}

struct GatherParams {
  uint32_t* slots;  // [num_blocks]
  uint32_t* num_arrived;
  uint32_t* sums;  // [2]: by the block that waits, and by the one that came last
};

// Block 0 waits for all the others with one acquire; the last of the others to come has acquired them all as
// well.
SWITCHYARD_KERNEL void gather_from_blocks(GatherParams params) {
  if (target::thread_idx() != 0) return;
  const uint32_t num_others = static_cast<uint32_t>(target::num_blocks() - 1);
  bool reads_all = target::block_idx() == 0;
  if (target::block_idx() == 0) {
    // acquire: pairs with each of the adds below, through those that followed it
    target::wait_until([&] { return target::ld_acquire_device(params.num_arrived) == num_others; },
                       kNoDeadline);
  } else {
    params.slots[target::block_idx()] = static_cast<uint32_t>(target::block_idx());
    // acq_rel: publishes this slot, and collects those of the blocks that came before
    reads_all = target::atomic_add_acq_rel_device(params.num_arrived, 1u) == num_others - 1;
  }
  if (!reads_all) return;
  uint32_t sum = 0;
  for (int block = 1; block < target::num_blocks(); ++block) sum += params.slots[block];
  params.sums[target::block_idx() == 0 ? 0 : 1] = sum;
}

TEST_P(Memory, AnAcquireSeesEveryReleaseInAChainOfAtomics) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto slots = zeros<uint32_t>(9), num_arrived = zeros<uint32_t>(1), sums = zeros<uint32_t>(2);
    run(gather_from_blocks, {.num_blocks = 9}, GatherParams{slots.data(), num_arrived.data(), sums.data()});
    EXPECT_EQ(download(sums), (std::vector<uint32_t>{36, 36}));
  }
}

struct RelaxedParams {
  uint64_t num_stores;
  uint64_t* device_word;
  uint64_t* system_word;
  uint64_t* num_wrong;
};

SWITCHYARD_DEVICE void check_sequence(uint64_t value, uint64_t& last, uint64_t& num_wrong) {
  const bool is_torn = (value >> 32) != (value & 0xffffffffu);
  if (is_torn || value < last) ++num_wrong;
  last = value;
}

// Block 0 counts up in both halves of each word; the other blocks watch.
SWITCHYARD_KERNEL void watch_relaxed_words(RelaxedParams params) {
  if (target::thread_idx() != 0) return;
  constexpr uint64_t kBothHalves = uint64_t{1} << 32 | 1;
  if (target::block_idx() == 0) {
    for (uint64_t i = 1; i <= params.num_stores; ++i) {
      target::st_relaxed_device(params.device_word, i * kBothHalves);
      target::st_relaxed_system(params.system_word, i * kBothHalves);
    }
    return;
  }
  uint64_t last_device = 0, last_system = 0, num_wrong = 0;
  target::wait_until(
      [&] {
        check_sequence(target::ld_relaxed_device(params.device_word), last_device, num_wrong);
        check_sequence(target::ld_relaxed_system(params.system_word), last_system, num_wrong);
        return last_device == params.num_stores * kBothHalves &&
               last_system == params.num_stores * kBothHalves;
      },
      kNoDeadline);
  target::atomic_add_relaxed_device(params.num_wrong, num_wrong);
}

TEST_P(Memory, RelaxedWordsArriveWholeAndNeverRunBackwards) {
  const auto words = zeros<uint64_t>(48);
  run(watch_relaxed_words, {.num_blocks = 4},
      RelaxedParams{500, words.data(), words.data() + 16, words.data() + 32});
  EXPECT_EQ(download(words)[32], 0u);
}

struct PeerParams {
  uint32_t* mine;
  uint32_t* theirs;
};

SWITCHYARD_KERNEL void meet_peer(PeerParams params) {
  if (target::thread_idx() != 0) return;
  target::st_release_system(params.mine, 1u);  // pairs with the peer's acquire below
  target::wait_until([&] { return target::ld_acquire_system(params.theirs) == 1; }, kNoDeadline);
}

TEST_P(Memory, LaunchesOfDifferentStreamsWaitForEachOther) {
  const auto flags = zeros<uint32_t>(2);
  const StreamHandle other = testing_support::must(device().create_stream());
  ASSERT_TRUE(launch(meet_peer, {}, PeerParams{flags.data(), flags.data() + 1}).ok());
  ASSERT_TRUE(target::launch("peer", meet_peer, {}, other, PeerParams{flags.data() + 1, flags.data()}).ok());
  EXPECT_TRUE(rank().synchronize().ok());
  EXPECT_TRUE(device().synchronize(other).ok());
  EXPECT_EQ(download(flags), (std::vector<uint32_t>{1, 1}));
  device().destroy_stream(other);
}

}  // namespace
}  // namespace switchyard

#undef Memory
