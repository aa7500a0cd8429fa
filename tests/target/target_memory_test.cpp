// The vocabulary of target/ as a contract, continued: atomics, the order they give, and copies. Compiled for
// the host and, through target_memory_test.cu, for CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
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
  const uint32_t found = target::atomic_inc_wrap_relaxed_device(params.counter, params.last);
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

// Copies.

struct VectorParams {
  const uint32_t* in;  // [num_threads][4]
  uint32_t* out;
};

SWITCHYARD_KERNEL void reverse_vectors(VectorParams params) {
  const Vec16 value = target::ld_16(params.in + 4 * target::thread_idx());
  target::st_16(params.out + 4 * (target::num_threads() - 1 - target::thread_idx()), value);
}

TEST_P(Memory, SixteenByteAccessesKeepTheOrderOfTheirWords) {
  std::vector<uint32_t> values(32 * 4);
  std::iota(values.begin(), values.end(), 0x01020304u);
  const auto in = upload(values), out = zeros<uint32_t>(32 * 4);
  run(reverse_vectors, {}, VectorParams{in.data(), out.data()});
  const std::vector<uint32_t> seen = download(out);
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_EQ(seen[i], values[(31 - i / 4) * 4 + i % 4]) << "word " << i;
}

constexpr int kMaxCopyLanes = 40;
// In 16-byte vectors: around the warp size, and around the four rounds a target may keep in flight.
constexpr int kCopySizes[] = {0, 1, 2, 3, 31, 32, 33, 127, 128, 129, 170};
constexpr int kNumCopySizes = sizeof(kCopySizes) / sizeof(kCopySizes[0]);
constexpr int kMaxCopyVectors = 170;
constexpr int kCopyStride = kMaxCopyVectors + 2;  // room to see a write before or past the row

struct CopyParams {
  const Vec16* src;  // [kMaxCopyVectors]
  const int* sizes;  // [kNumCopySizes]
  Vec16* dst;        // [kMaxCopyLanes][kNumCopySizes][kCopyStride]; a row starts after one vector
};

// Block b copies a row of each size with b + 1 lanes.
SWITCHYARD_KERNEL void copy_with_every_lane_count(CopyParams params) {
  const int num_lanes = target::block_idx() + 1;
  if (target::thread_idx() >= num_lanes) return;
  for (int i = 0; i < kNumCopySizes; ++i)
    target::copy_row(params.dst + (target::block_idx() * kNumCopySizes + i) * kCopyStride + 1, params.src,
                     params.sizes[i] * sizeof(Vec16), target::thread_idx(), num_lanes);
}

TEST_P(Memory, CopyRowCopiesExactlyTheRowWithAnyNumberOfLanes) {
  const auto vector_of = [](uint32_t i) { return Vec16{{i, ~i, i * 2654435761u, i << 20}}; };
  const auto is_equal = [](const Vec16& a, const Vec16& b) {
    return std::equal(a.words, a.words + 4, b.words);
  };
  std::vector<Vec16> source(kMaxCopyVectors);
  for (uint32_t i = 0; i < kMaxCopyVectors; ++i) source[i] = vector_of(i);
  const auto src = upload(source);
  const auto sizes = upload(std::vector<int>(std::begin(kCopySizes), std::end(kCopySizes)));
  auto dst = zeros<Vec16>(kMaxCopyLanes * kNumCopySizes * kCopyStride);
  ASSERT_TRUE(dst.fill_bytes(0xee).ok());
  constexpr Vec16 kUntouched{{0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee}};
  run(copy_with_every_lane_count, {.num_blocks = kMaxCopyLanes, .num_threads = 64},
      CopyParams{src.data(), sizes.data(), dst.data()});
  const std::vector<Vec16> seen = download(dst);
  for (int row = 0; row < kMaxCopyLanes * kNumCopySizes; ++row) {
    const int num_vectors = kCopySizes[row % kNumCopySizes];
    int num_wrong = 0;
    for (int i = -1; i <= kMaxCopyVectors; ++i) {
      const bool is_copied = i >= 0 && i < num_vectors;
      const Vec16 expected = is_copied ? source[static_cast<size_t>(i)] : kUntouched;
      if (!is_equal(seen[static_cast<size_t>(row * kCopyStride + 1 + i)], expected)) ++num_wrong;
    }
    EXPECT_EQ(num_wrong, 0) << num_vectors << " vectors with " << row / kNumCopySizes + 1 << " lanes";
  }
}

constexpr int kBulkRows = 7, kBulkColumns = 96, kBulkStages = 2;
constexpr uint32_t kBulkRowBytes = kBulkColumns * sizeof(int);

struct BulkParams {
  const int* in;  // [kBulkRows][kBulkColumns]
  int* out;
  uint32_t* num_early;  // barriers that were done before anything had been brought
};

struct BulkShared {
  alignas(128) int rows[kBulkStages][kBulkColumns];
  target::TransferBarrier full[kBulkStages];   // one arrival, and the row's bytes
  target::TransferBarrier empty[kBulkStages];  // one arrival per consumer
};

SWITCHYARD_DEVICE uint32_t bulk_parity(int row) { return static_cast<uint32_t>(row / kBulkStages % 2); }

// The last warp's first thread: loads each row into its stage once the consumers have left it.
SWITCHYARD_DEVICE void produce_rows(const BulkParams& params, BulkShared& shared) {
  for (int row = 0; row < kBulkRows; ++row) {
    const int stage = row % kBulkStages;
    // acquire: the consumers are done with what was here; pairs with their arrive()
    if (row >= kBulkStages)
      target::wait_until([&] { return shared.empty[stage].done(bulk_parity(row - kBulkStages)); },
                         kNoDeadline);
    target::fence_proxy_async();
    shared.full[stage].arrive_expect(kBulkRowBytes);
    target::bulk_load(shared.rows[stage], params.in + row * kBulkColumns, kBulkRowBytes, shared.full[stage]);
  }
}

// A thread per column: reads another thread's column, as the barrier must have brought the whole row.
SWITCHYARD_DEVICE void consume_rows(const BulkParams& params, BulkShared& shared) {
  const int column = target::thread_idx();
  for (int row = 0; row < kBulkRows; ++row) {
    const int stage = row % kBulkStages;
    target::wait_until([&] { return shared.full[stage].done(bulk_parity(row)); }, kNoDeadline);
    params.out[row * kBulkColumns + column] = 3 * shared.rows[stage][kBulkColumns - 1 - column];
    shared.empty[stage].arrive();  // release: pairs with the producer's wait
  }
}

SWITCHYARD_KERNEL void pipeline_bulk_loads(BulkParams params) {
  BulkShared& shared = target::shared_storage<BulkShared>();
  if (target::thread_idx() == 0)
    for (int stage = 0; stage < kBulkStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(kBulkColumns);
      if (shared.full[stage].done(0) || shared.empty[stage].done(0)) *params.num_early += 1;
    }
  target::sync_block();
  if (target::thread_idx() < kBulkColumns)
    consume_rows(params, shared);
  else if (target::thread_idx() == kBulkColumns)
    produce_rows(params, shared);
}

TEST_P(Memory, ABulkLoadCompletesOnItsBarrierPhaseByPhase) {
  std::vector<int> values(kBulkRows * kBulkColumns), expected(values.size());
  std::iota(values.begin(), values.end(), 1);
  for (int i = 0; i < kBulkRows * kBulkColumns; ++i)
    expected[i] = 3 * values[i / kBulkColumns * kBulkColumns + kBulkColumns - 1 - i % kBulkColumns];
  const auto in = upload(values), out = zeros<int>(values.size());
  const auto num_early = zeros<uint32_t>(1);
  run(pipeline_bulk_loads, {.num_threads = kBulkColumns + kWarpSize, .shared_bytes = sizeof(BulkShared)},
      BulkParams{in.data(), out.data(), num_early.data()});
  EXPECT_EQ(download(out), expected);
  EXPECT_EQ(download(num_early).front(), 0u);
}

struct BulkStoreParams {
  int* out;     // [kBulkRows][kBulkColumns]
  int* echoed;  // the same, as read back by the storing thread
};

// Rows are made in turn in two stages and stored; a stage is written again only once its store has read it.
SWITCHYARD_KERNEL void store_rows_in_bulk(BulkStoreParams params) {
  BulkShared& shared = target::shared_storage<BulkShared>();
  for (int row = 0; row < kBulkRows; ++row) {
    const int stage = row % kBulkStages;
    if (target::thread_idx() == 0) target::bulk_wait_read<kBulkStages - 1>();
    target::sync_block();
    shared.rows[stage][target::thread_idx()] = row * 1000 + target::thread_idx();
    target::fence_proxy_async();
    target::sync_block();
    if (target::thread_idx() == 0) {
      target::bulk_store(params.out + row * kBulkColumns, shared.rows[stage], kBulkRowBytes);
      target::bulk_commit();
    }
  }
  if (target::thread_idx() != 0) return;
  target::bulk_wait<0>();
  target::fence_proxy_async();
  for (int i = 0; i < kBulkRows * kBulkColumns; ++i) params.echoed[i] = params.out[i];
}

TEST_P(Memory, BulkStoresAreDoneAfterTheirWait) {
  std::vector<int> expected;
  for (int row = 0; row < kBulkRows; ++row)
    for (int column = 0; column < kBulkColumns; ++column) expected.push_back(row * 1000 + column);
  const auto out = zeros<int>(expected.size()), echoed = zeros<int>(expected.size());
  run(store_rows_in_bulk, {.num_threads = kBulkColumns, .shared_bytes = sizeof(BulkShared)},
      BulkStoreParams{out.data(), echoed.data()});
  EXPECT_EQ(download(out), expected);
  EXPECT_EQ(download(echoed), expected);
}

}  // namespace
}  // namespace switchyard

#undef Memory
