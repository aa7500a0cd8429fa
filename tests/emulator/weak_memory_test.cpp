// The weak memory of the emulator: litmus tests of what it allows and forbids.
#include <memory>
#include <set>

#include "switchyard/detail/target/target.hpp"
#include "weak_memory_fixture.hpp"

namespace switchyard {
namespace {

using emulator::Machine;
using testing_support::weak_options;

class WeakMemory : public testing_support::WeakMemoryTest {};

// Memory of a litmus test; kernels use what they need of it.
struct Board {
  alignas(16) uint32_t data[8];
  alignas(16) uint32_t flag;
  alignas(16) uint32_t count;
  alignas(16) Vec16 vector;
  // Written and read plainly: not part of the test.
  alignas(16) uint32_t num_stale;
};

using Kernel = void (*)(Board*);
struct LitmusLaunch {
  Kernel kernel;
  LaunchShape shape = {};
};

// Runs the launches, each on a stream of its own or one after the other on the same, with a fresh board.
enum class Streams { kOneEach, kSame };
Status run_litmus(const std::vector<LitmusLaunch>& launches, Streams streams, uint64_t seed, Board& board) {
  Machine machine(weak_options(seed));
  emulator::Stream* stream = machine.create_stream();
  for (const LitmusLaunch& launch : launches) {
    SWITCHYARD_RETURN_IF_ERROR(target::launch("litmus", launch.kernel, launch.shape, stream, &board));
    if (streams == Streams::kOneEach) stream = machine.create_stream();
  }
  return machine.synchronize();
}

constexpr uint64_t kNumSeeds = 200;

// Of kNumSeeds seeds, those that showed something stale.
uint64_t num_stale_seeds(const std::vector<LitmusLaunch>& launches, Streams streams = Streams::kOneEach) {
  uint64_t num_stale = 0;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    auto board = std::make_unique<Board>();
    const Status status = run_litmus(launches, streams, seed, *board);
    EXPECT_TRUE(status.ok()) << "seed " << seed << ": " << status.to_string();
    num_stale += board->num_stale > 0;
  }
  return num_stale;
}

template <Order kOrder, Scope kScope>
void send(Board* board) {
  if (target::thread_idx() != 0) return;
  target::st(&board->data[0], 1u);
  target::store<kOrder, kScope>(&board->flag, 1u);
}
template <Order kOrder, Scope kScope>
void receive(Board* board) {
  if (target::thread_idx() != 0) return;
  target::wait_until([&] { return target::load<kOrder, kScope>(&board->flag) == 1; }, kNoDeadline);
  board->num_stale += target::ld(&board->data[0]) != 1;
}
template <Order kStore, Order kLoad, Scope kScope>
void pass_message(Board* board) {
  target::block_idx() == 0 ? send<kStore, kScope>(board) : receive<kLoad, kScope>(board);
}
template <Order kStore, Order kLoad, Scope kScope>
uint64_t num_stale_messages() {
  return num_stale_seeds({{pass_message<kStore, kLoad, kScope>, {.num_blocks = 2}}});
}

TEST_F(WeakMemory, AReleaseAndItsAcquirePassAMessage) {
  EXPECT_EQ((num_stale_messages<Order::kRelease, Order::kAcquire, Scope::kDevice>()), 0u);
  EXPECT_EQ((num_stale_messages<Order::kRelease, Order::kAcquire, Scope::kSystem>()), 0u);
}

TEST_F(WeakMemory, ARelaxedStoreOrLoadDoesNot) {
  EXPECT_GT((num_stale_messages<Order::kRelaxed, Order::kAcquire, Scope::kDevice>()), 10u);
  EXPECT_GT((num_stale_messages<Order::kRelease, Order::kRelaxed, Scope::kDevice>()), 10u);
}

TEST_F(WeakMemory, AScopeEndsWhereItSays) {
  EXPECT_GT((num_stale_messages<Order::kRelease, Order::kAcquire, Scope::kBlock>()), 10u) << "between blocks";
  constexpr auto kRelease = Order::kRelease;
  constexpr auto kAcquire = Order::kAcquire;
  EXPECT_EQ(num_stale_seeds({{send<kRelease, Scope::kSystem>}, {receive<kAcquire, Scope::kSystem>}}), 0u);
  EXPECT_GT(num_stale_seeds({{send<kRelease, Scope::kDevice>}, {receive<kAcquire, Scope::kDevice>}}), 10u);
  EXPECT_GT(num_stale_seeds({{send<kRelease, Scope::kSystem>}, {receive<kAcquire, Scope::kDevice>}}), 10u)
      << "both sides must reach the other";
  EXPECT_GT(num_stale_seeds({{send<kRelease, Scope::kDevice>}, {receive<kAcquire, Scope::kSystem>}}), 10u);
}

TEST_F(WeakMemory, KernelsOfAStreamAreOrdered) {
  auto read = +[](Board* board) { board->num_stale += target::ld(&board->data[0]) != 1; };
  EXPECT_EQ(num_stale_seeds({{send<Order::kRelaxed, Scope::kBlock>}, {read}}, Streams::kSame), 0u);
}

TEST_F(WeakMemory, WhatTheHostHasWaitedForIsOrdered) {
  auto read = +[](Board* board) { board->num_stale += target::ld(&board->data[0]) != 1; };
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    Board board{};
    Machine machine(weak_options(seed));
    emulator::Stream* first = machine.create_stream();
    emulator::Stream* second = machine.create_stream();
    ASSERT_TRUE(target::launch("send", send<Order::kRelaxed, Scope::kBlock>, {}, first, &board).ok());
    ASSERT_TRUE(machine.synchronize(first).ok());
    ASSERT_TRUE(target::launch("read", read, {}, second, &board).ok());
    ASSERT_TRUE(machine.synchronize(second).ok());
    EXPECT_EQ(board.num_stale, 0u) << "seed " << seed;
  }
}

// Every block writes; the last one to count itself reads what all have written.
template <Order kOrder>
void elect(Board* board) {
  const int block_idx = target::block_idx();
  if (target::thread_idx() == kWarpSize) target::st(&board->data[block_idx], 1u);
  target::sync_block();
  bool is_last = false;
  if (target::thread_idx() == 0)
    is_last = target::fetch_add<kOrder, Scope::kDevice>(&board->count, 1u) ==
              static_cast<uint32_t>(target::num_blocks()) - 1;
  if (!target::sync_block_any(is_last)) return;
  if (target::thread_idx() == kWarpSize)
    for (int i = 0; i < target::num_blocks(); ++i) board->num_stale += target::ld(&board->data[i]) != 1;
}

TEST_F(WeakMemory, AnElectionPublishesWhatAllBlocksWroteIfItIsAcqRel) {
  const LaunchShape shape{.num_blocks = 4, .num_threads = 2 * kWarpSize};
  EXPECT_EQ(num_stale_seeds({{elect<Order::kAcqRel>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{elect<Order::kRelaxed>, shape}}), 10u);
  EXPECT_GT(num_stale_seeds({{elect<Order::kRelease>, shape}}), 10u);
  EXPECT_GT(num_stale_seeds({{elect<Order::kAcquire>, shape}}), 10u);
}

// Warp 0 writes, warp 1 reads; in between they meet at a barrier, or only see each other.
void publish_by_sync_block(Board* board) {
  if (target::thread_idx() == 0) target::st(&board->data[0], 1u);
  target::sync_block();
  if (target::thread_idx() == kWarpSize) board->num_stale += target::ld(&board->data[0]) != 1;
}
void publish_by_named_barrier(Board* board) {
  if (target::warp_idx() == 0) {
    if (target::lane_idx() == 0) target::st(&board->data[0], 1u);
    target::named_barrier_arrive(1, 2 * kWarpSize);
  } else {
    target::named_barrier_sync(1, 2 * kWarpSize);
    if (target::lane_idx() == 0) board->num_stale += target::ld(&board->data[0]) != 1;
  }
}
void publish_by_hope(Board* board) {
  if (target::thread_idx() == 0) send<Order::kRelaxed, Scope::kBlock>(board);
  if (target::thread_idx() != kWarpSize) return;
  target::wait_until([&] { return target::load<Order::kRelaxed, Scope::kBlock>(&board->flag) == 1; },
                     kNoDeadline);
  board->num_stale += target::ld(&board->data[0]) != 1;
}
void publish_by_transfer_barrier(Board* board) {
  auto& barrier = target::shared_storage<target::TransferBarrier>();
  if (target::thread_idx() == 0) barrier.init(1);
  target::sync_block();
  if (target::thread_idx() == 0) {
    target::st(&board->data[0], 1u);
    barrier.arrive();
  }
  if (target::thread_idx() != kWarpSize) return;
  target::wait_until([&] { return barrier.done(0); }, kNoDeadline);
  board->num_stale += target::ld(&board->data[0]) != 1;
}

TEST_F(WeakMemory, BarriersPublishWithinABlock) {
  const LaunchShape shape{.num_threads = 2 * kWarpSize, .shared_bytes = sizeof(target::TransferBarrier)};
  EXPECT_EQ(num_stale_seeds({{publish_by_sync_block, shape}}), 0u);
  EXPECT_EQ(num_stale_seeds({{publish_by_named_barrier, shape}}), 0u);
  EXPECT_EQ(num_stale_seeds({{publish_by_transfer_barrier, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{publish_by_hope, shape}}), 10u);
}

// One block counts up, the other looks on. Never stops being right: what it saw once does not come back.
TEST_F(WeakMemory, AWordDoesNotGoBackForWhoHasReadIt) {
  auto kernel = +[](Board* board) {
    if (target::thread_idx() != 0) return;
    uint32_t last = 0;
    for (uint32_t i = 1; i <= 12; ++i) {
      if (target::block_idx() == 0) target::st_relaxed_device(&board->flag, i);
      if (target::block_idx() == 0) continue;
      const uint32_t seen = target::ld_relaxed_device(&board->flag);
      board->num_stale += seen < last;
      board->data[0] += seen != board->flag;  // behind, but not back
      last = seen;
    }
  };
  uint64_t num_behind = 0;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    Board board{};
    ASSERT_TRUE(run_litmus({{kernel, {.num_blocks = 2}}}, Streams::kSame, seed, board).ok());
    EXPECT_EQ(board.num_stale, 0u) << "seed " << seed;
    num_behind += board.data[0] > 0;
  }
  EXPECT_GT(num_behind, 10u);
}

TEST_F(WeakMemory, ASixteenByteAccessIsNeverTorn) {
  auto kernel = +[](Board* board) {
    if (target::thread_idx() != 0) return;
    for (uint32_t i = 1; i <= 12; ++i) {
      target::st_relaxed_device(&board->flag, i);  // somewhere to be overtaken
      if (target::block_idx() == 0) {
        target::st_16(&board->vector, Vec16{{i, i, i, i}});
        continue;
      }
      const Vec16 seen = target::ld_16(&board->vector);
      for (const uint32_t word : seen.words) board->num_stale += word != seen.words[0];
    }
  };
  EXPECT_EQ(num_stale_seeds({{kernel, {.num_blocks = 2}}}), 0u);
}

// A bulk store is not made by the thread that asks for it: it is there once the thread has waited for its
// group.
template <bool kWaits>
void send_by_bulk_store(Board* board) {
  if (target::thread_idx() != 0) return;
  if (target::block_idx() == 1) {
    target::wait_until([&] { return target::ld_acquire_device(&board->flag) == 1; }, kNoDeadline);
    board->num_stale += target::ld_16(&board->vector).words[3] != 7;
    return;
  }
  Vec16* staged = &target::shared_storage<Vec16>();
  target::st_16(staged, Vec16{{7, 7, 7, 7}});
  target::fence_proxy_async_shared();
  target::bulk_store(&board->vector, staged, sizeof(Vec16));
  target::bulk_commit();
  if (kWaits) target::bulk_wait<0>();
  target::st_release_device(&board->flag, 1u);  // pairs with the acquire above
}

TEST_F(WeakMemory, ABulkStoreIsOrderedByWaitingForIt) {
  const LaunchShape shape{.num_blocks = 2, .shared_bytes = sizeof(Vec16)};
  EXPECT_EQ(num_stale_seeds({{send_by_bulk_store<true>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{send_by_bulk_store<false>, shape}}), 10u);
}

// Nor does it read its source at once: until the thread has waited for that, the source must stay as it is.
template <bool kWaits>
void rewrite_source_of_bulk_store(Board* board) {
  if (target::thread_idx() != 0) return;
  Vec16* staged = &target::shared_storage<Vec16>();
  target::st_16(staged, Vec16{{7, 7, 7, 7}});
  target::fence_proxy_async_shared();
  target::bulk_store(&board->vector, staged, sizeof(Vec16));
  target::bulk_commit();
  if (kWaits) target::bulk_wait_read<0>();
  target::st_16(staged, Vec16{{9, 9, 9, 9}});
  target::bulk_wait<0>();
  board->num_stale += target::ld_16(&board->vector).words[3] != 7;
}

TEST_F(WeakMemory, ABulkStoreReadsItsSourceUntilItIsWaitedFor) {
  const LaunchShape shape{.shared_bytes = sizeof(Vec16)};
  EXPECT_EQ(num_stale_seeds({{rewrite_source_of_bulk_store<true>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{rewrite_source_of_bulk_store<false>, shape}}), 10u);
}

// Bulk copies and the matrix unit take another path to memory than loads and stores do, and a proxy fence
// joins the two. What a warp wrote into shared memory is not what its bulk store reads, until it has fenced.
enum class Fence { kNone, kShared, kAll };
template <Fence kFence>
void fence() {
  if (kFence == Fence::kShared) target::fence_proxy_async_shared();
  if (kFence == Fence::kAll) target::fence_proxy_async();
}
template <Fence kFence>
void store_staged(Board* board) {
  Vec16* staged = &target::shared_storage<Vec16>();
  if (target::thread_idx() == kWarpSize) {
    target::st_16(staged, Vec16{{7, 7, 7, 7}});
    fence<kFence>();
  }
  target::sync_block();
  if (target::thread_idx() != 0) return;
  target::bulk_store(&board->vector, staged, sizeof(Vec16));
  target::bulk_commit();
  target::bulk_wait<0>();
  board->num_stale += target::ld_16(&board->vector).words[3] != 7;
}

TEST_F(WeakMemory, ABulkStoreReadsWhatWasFencedForIt) {
  const LaunchShape shape{.num_threads = 2 * kWarpSize, .shared_bytes = sizeof(Vec16)};
  EXPECT_EQ(num_stale_seeds({{store_staged<Fence::kShared>, shape}}), 0u);
  EXPECT_EQ(num_stale_seeds({{store_staged<Fence::kAll>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{store_staged<Fence::kNone>, shape}}), 10u);
}

// What another block wrote and released is read by a load; a bulk load needs a fence behind the acquire, and
// one of all memory.
struct LoadStage {
  Vec16 staged;
  target::TransferBarrier barrier;
};
template <Fence kFence>
void load_message(Board* board) {
  if (target::thread_idx() != 0) return;
  if (target::block_idx() == 0) {
    target::st_16(&board->vector, Vec16{{7, 7, 7, 7}});
    target::fence_proxy_async();                  // of this block's bulk copies only
    target::st_release_device(&board->flag, 1u);  // pairs with the acquire below
    return;
  }
  auto& stage = target::shared_storage<LoadStage>();
  stage.barrier.init(1);
  target::wait_until([&] { return target::ld_acquire_device(&board->flag) == 1; }, kNoDeadline);
  fence<kFence>();
  stage.barrier.arrive_expect(sizeof(Vec16));
  target::bulk_load(&stage.staged, &board->vector, sizeof(Vec16), stage.barrier);
  target::wait_until([&] { return stage.barrier.done(0); }, kNoDeadline);
  board->num_stale += target::ld_16(&stage.staged).words[3] != 7;
}

TEST_F(WeakMemory, ABulkLoadReadsWhatWasFencedForItsBlock) {
  const LaunchShape shape{.num_blocks = 2, .shared_bytes = sizeof(LoadStage)};
  EXPECT_EQ(num_stale_seeds({{load_message<Fence::kAll>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{load_message<Fence::kShared>, shape}}), 10u);
  EXPECT_GT(num_stale_seeds({{load_message<Fence::kNone>, shape}}), 10u);
}

TEST_F(WeakMemory, ALaunchFencesWhatCameBeforeIt) {
  auto load = +[](Board* board) {
    if (target::thread_idx() != 0) return;
    auto& stage = target::shared_storage<LoadStage>();
    stage.barrier.init(1);
    stage.barrier.arrive_expect(sizeof(Vec16));
    target::bulk_load(&stage.staged, &board->data, sizeof(Vec16), stage.barrier);
    target::wait_until([&] { return stage.barrier.done(0); }, kNoDeadline);
    board->num_stale += target::ld_16(&stage.staged).words[0] != 1;
  };
  EXPECT_EQ(
      num_stale_seeds({{send<Order::kRelaxed, Scope::kBlock>}, {load, {.shared_bytes = sizeof(LoadStage)}}},
                      Streams::kSame),
      0u);
}

// A bulk load brings its bytes at any time until its barrier says so, and the barrier is a fence for them.
template <bool kWaits>
void use_load(Board* board) {
  auto& stage = target::shared_storage<LoadStage>();
  if (target::thread_idx() == 0) {
    stage.barrier.init(1);
    target::st_16(&stage.staged, Vec16{{9, 9, 9, 9}});
    target::fence_proxy_async_shared();
  }
  target::sync_block();
  if (target::thread_idx() == 0) {
    stage.barrier.arrive_expect(sizeof(Vec16));
    target::bulk_load(&stage.staged, &board->vector, sizeof(Vec16), stage.barrier);
  }
  target::sync_block();
  const auto wait = [&] { target::wait_until([&] { return stage.barrier.done(0); }, kNoDeadline); };
  if (target::thread_idx() == kWarpSize) {
    if (kWaits) wait();
    board->num_stale += target::ld_16(&stage.staged).words[3] != 0;
  }
  target::sync_block();
  wait();
}

TEST_F(WeakMemory, ABulkLoadIsThereWhenItsBarrierSaysSo) {
  const LaunchShape shape{.num_threads = 2 * kWarpSize, .shared_bytes = sizeof(LoadStage)};
  EXPECT_EQ(num_stale_seeds({{use_load<true>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{use_load<false>, shape}}), 10u);
}

TEST_F(WeakMemory, ABlockThatEndsBeforeItsBulkLoadsIsAnErrorThatNamesTheLoad) {
  auto leave = +[](Board* board) {
    if (target::thread_idx() != 0) return;
    auto& stage = target::shared_storage<LoadStage>();
    stage.barrier.init(1);
    stage.barrier.arrive_expect(sizeof(Vec16));
    target::bulk_load(&stage.staged, &board->vector, sizeof(Vec16), stage.barrier);
  };
  uint64_t num_found = 0;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    Board board{};
    const Status status =
        run_litmus({{leave, {.shared_bytes = sizeof(LoadStage)}}}, Streams::kSame, seed, board);
    num_found +=
        status.message().find("ends before the bulk load at weak_memory_test.cpp") != std::string::npos;
  }
  EXPECT_GT(num_found, 10u);
}

// A bulk copy may not overtake the loads and stores of the memory it writes; its own block's copies need no
// fence.
enum class Before { kLoad, kStore, kBulkStore };
template <Before kBefore, Fence kFence>
void load_again(Board* board) {
  auto& stage = target::shared_storage<LoadStage>();
  if (target::thread_idx() == 0) stage.barrier.init(1);
  target::sync_block();
  if (target::thread_idx() == kWarpSize) {
    if (kBefore == Before::kLoad) target::ld_16(&stage.staged);
    if (kBefore == Before::kStore) target::st_16(&stage.staged, Vec16{});
    if (kBefore == Before::kBulkStore) {
      target::bulk_store(&board->data, &stage.staged, sizeof(Vec16));
      target::bulk_commit();
      target::bulk_wait_read<0>();
    }
    fence<kFence>();
  }
  target::sync_block();
  if (target::thread_idx() != 0) return;
  stage.barrier.arrive_expect(sizeof(Vec16));
  target::bulk_load(&stage.staged, &board->vector, sizeof(Vec16), stage.barrier);
  target::wait_until([&] { return stage.barrier.done(0); }, kNoDeadline);
}
template <Before kBefore, Fence kFence>
Status load_again_status() {
  Board board{};
  const LaunchShape shape{.num_threads = 2 * kWarpSize, .shared_bytes = sizeof(LoadStage)};
  return run_litmus({{load_again<kBefore, kFence>, shape}}, Streams::kSame, 1, board);
}

TEST_F(WeakMemory, ABulkCopyThatMayOvertakeIsAnErrorThatNamesBoth) {
  EXPECT_NE((load_again_status<Before::kLoad, Fence::kNone>().message().find("may overtake the load at")),
            std::string::npos);
  EXPECT_NE((load_again_status<Before::kStore, Fence::kNone>().message().find("may overtake the store at")),
            std::string::npos);
  EXPECT_TRUE((load_again_status<Before::kLoad, Fence::kShared>().ok()));
  EXPECT_TRUE((load_again_status<Before::kStore, Fence::kShared>().ok()));
  EXPECT_TRUE((load_again_status<Before::kBulkStore, Fence::kNone>().ok()));
}

// Every block reads the flag, the last one out puts it back: with a relaxed election the reset may come
// first.
template <Order kOrder>
void reset_behind_readers(Board* board) {
  if (target::thread_idx() != 0) return;
  target::ld_relaxed_device(&board->flag);
  if (target::fetch_add<kOrder, Scope::kDevice>(&board->count, 1u) ==
      static_cast<uint32_t>(target::num_blocks()) - 1)
    target::st_relaxed_device(&board->flag, 0u);
}

TEST_F(WeakMemory, AStoreThatMayOvertakeALoadIsAnErrorThatNamesBoth) {
  Board ordered{}, unordered{};
  EXPECT_TRUE(
      run_litmus({{reset_behind_readers<Order::kAcqRel>, {.num_blocks = 3}}}, Streams::kSame, 1, ordered)
          .ok());
  const Status status =
      run_litmus({{reset_behind_readers<Order::kRelaxed>, {.num_blocks = 3}}}, Streams::kSame, 1, unordered);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("may overtake the load at weak_memory_test.cpp"), std::string::npos)
      << status.to_string();
}

TEST_F(WeakMemory, AnAccessOutsideTheDevicesMemoryIsAnErrorThatNamesTheLocation) {
  Board board{};
  Machine machine(weak_options(1));
  machine.add_memory(&board.flag, sizeof(board.flag));
  emulator::Stream* stream = machine.create_stream();
  ASSERT_TRUE(target::launch("send", send<Order::kRelease, Scope::kDevice>, {}, stream, &board).ok());
  const Status status = machine.synchronize(stream);
  EXPECT_NE(status.message().find("which is no memory of the device"), std::string::npos)
      << status.to_string();
  EXPECT_NE(status.message().find("weak_memory_test.cpp"), std::string::npos) << status.to_string();
}

TEST_F(WeakMemory, TheSameSeedGivesTheSameTrace) {
  const auto trace = [](uint64_t seed) {
    Board board{};
    Machine machine(weak_options(seed));
    emulator::Stream* stream = machine.create_stream();
    auto kernel = pass_message<Order::kRelaxed, Order::kAcquire, Scope::kDevice>;
    EXPECT_TRUE(target::launch("litmus", kernel, {.num_blocks = 2}, stream, &board).ok());
    EXPECT_TRUE(machine.synchronize().ok());
    return std::pair(machine.trace_hash(), board.num_stale);
  };
  std::set<uint64_t> traces;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(trace(seed), trace(seed));
    traces.insert(trace(seed).first);
  }
  EXPECT_EQ(traces.size(), 20u);
}

}  // namespace
}  // namespace switchyard
