// The weak memory of the emulator: litmus tests of what it allows and forbids, the expert-parallel protocol
// under it, and a mutant for every release and acquire of docs/memory-model.md, each of which must be caught.
#include <cstring>
#include <memory>
#include <set>

#include "ep_harness.hpp"
#include "machine.hpp"
#include "switchyard/sync/wait.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard {
namespace {

using emulator::Machine;
using emulator::MachineOptions;
using emulator::Mode;
using testing_support::as_run;
using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::StepMode;

class WeakMemory : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer looks for missing order itself; the emulator has no weak memory then";
#endif
  }
};
class WeakMemoryProtocol : public WeakMemory {};

MachineOptions weak_options(uint64_t seed) { return {.mode = Mode::kSimulated, .seed = seed, .weak = true}; }

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
constexpr uint64_t kOverwrittenWord = uint64_t{kOverwritten} << 32 | kOverwritten;

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
  Vec16& staged = target::shared_storage<Vec16>();
  staged = Vec16{{7, 7, 7, 7}};
  target::bulk_store(&board->vector, &staged, sizeof(Vec16));
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
  Vec16& staged = target::shared_storage<Vec16>();
  staged = Vec16{{7, 7, 7, 7}};
  target::bulk_store(&board->vector, &staged, sizeof(Vec16));
  target::bulk_commit();
  if (kWaits) target::bulk_wait_read<0>();
  staged = Vec16{{9, 9, 9, 9}};
  target::bulk_wait<0>();
  board->num_stale += target::ld_16(&board->vector).words[3] != 7;
}

TEST_F(WeakMemory, ABulkStoreReadsItsSourceUntilItIsWaitedFor) {
  const LaunchShape shape{.shared_bytes = sizeof(Vec16)};
  EXPECT_EQ(num_stale_seeds({{rewrite_source_of_bulk_store<true>, shape}}), 0u);
  EXPECT_GT(num_stale_seeds({{rewrite_source_of_bulk_store<false>, shape}}), 10u);
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

TEST_F(WeakMemory, AnAccessOutsideTheDevicesMemoryIsAnErrorThatNamesThePlace) {
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

// The expert-parallel protocol. What a seed runs: 2 or 3 ranks, split or fused, step by step or back to back.
template <Protocol kProtocol, bool kExpertsInPlace>
std::string run_protocol(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const bool two_ranks = seed % 3 != 2;
  // A large hidden size gives every block something to do in combine_wait.
  Shape shape{.n_ranks = two_ranks ? 2 : 3,
              .n_experts = two_ranks ? 4 : 6,
              .top_k = 2,
              .hidden = seed % 4 == 1 ? 256 : 16,
              .tokens_per_rank = two_ranks ? std::vector{3, 2} : std::vector{2, 3, 1}};
  EpHarness harness(shape,
                    {.mode = seed % 2 == 0 ? StepMode::kSplit : StepMode::kFused,
                     .protocol = kProtocol,
                     .n_sms = 2,
                     .num_threads = seed % 5 == 4 ? 64 : 32,
                     .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true, .mutant = mutant},
                     .experts_in_place = kExpertsInPlace});
  const std::vector<reference::Step> steps = {make_step(shape, seed * 2), make_step(shape, seed * 2 + 1)};
  if (seed / 2 % 2 == 0) return harness.run_back_to_back(steps);
  for (const reference::Step& step : steps)
    if (const std::string difference = harness.run_and_compare(step); !difference.empty()) return difference;
  return "";
}

constexpr auto run_slotted = run_protocol<Protocol::kSlotted, false>;
constexpr auto run_direct = run_protocol<Protocol::kDirect, false>;
// Peers read the very rows that the next step writes over.
constexpr auto run_direct_in_place = run_protocol<Protocol::kDirect, true>;

TEST_F(WeakMemoryProtocol, SlottedIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 400; ++seed)
    ASSERT_EQ(run_slotted(seed, std::nullopt), "") << "seed " << seed;
}

TEST_F(WeakMemoryProtocol, DirectIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 400; ++seed)
    ASSERT_EQ((seed % 2 == 0 ? run_direct : run_direct_in_place)(seed / 2, std::nullopt), "")
        << "seed " << seed;
}

// Tokens that are encoded, with scales that lie by row or in between those of other rows.
std::string run_encoded(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const Shape shape{.hidden = 128, .tokens_per_rank = {3, 2}};
  const RunOptions run{
      .mode = seed % 2 == 0 ? StepMode::kSplit : StepMode::kFused,
      .protocol = Protocol::kDirect,
      .n_sms = 2,
      .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true, .mutant = mutant},
      .format = seed % 4 < 2 ? TokenFormatKind::kMXFP8 : TokenFormatKind::kFP8};
  return EpHarness(shape, run)
      .run_back_to_back(
          {as_run(make_step(shape, seed * 2), run), as_run(make_step(shape, seed * 2 + 1), run)});
}

TEST_F(WeakMemoryProtocol, DirectWithEncodedTokensIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 100; ++seed)
    ASSERT_EQ(run_encoded(seed, std::nullopt), "") << "seed " << seed;
}

// Steps that an all-reduce completes. The third one writes where the first one's values were.
std::string run_all_reduce(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const int n_ranks = seed % 3 != 2 ? 2 : 3;
  const Shape shape{.n_ranks = n_ranks,
                    .n_experts = 2 * n_ranks,
                    .hidden = 256,  // every block has some of it
                    .tokens_per_rank = std::vector<int>(static_cast<size_t>(n_ranks), 2)};
  const RunOptions run{
      .mode = StepMode::kFused,
      .protocol = seed % 2 == 0 ? Protocol::kSlotted : Protocol::kDirect,
      .n_sms = 2,
      .num_threads = 32,
      .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true, .mutant = mutant},
      .routing = Routing::kSkipAllToAll};
  std::vector<reference::Step> steps;
  for (uint64_t i = 0; i < 3; ++i) steps.push_back(as_run(make_step(shape, seed * 3 + i), run));
  return EpHarness(shape, run).run_back_to_back(steps);
}

TEST_F(WeakMemoryProtocol, TheAllReduceIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 100; ++seed)
    ASSERT_EQ(run_all_reduce(seed, std::nullopt), "") << "seed " << seed;
}

// What the host does with a fault record, done by a kernel on another stream: the host does not go through
// the weak memory. Says whether all of the record is there once its state says so.
struct FaultParams {
  FaultChannel channel;
  uint32_t* num_stale;
};
void report_fault(FaultParams params) {
  if (target::thread_idx() == 0)
    raise_fault(params.channel, FaultKind::kTimeout, {Phase::kCombineWait, 3, 5, 7}, 11, 13);
}
void read_fault(FaultParams params) {
  if (target::thread_idx() != 0) return;
  FaultRecord& record = *params.channel.record;
  target::wait_until([&] { return target::ld_acquire_system(&record.state) == FaultRecord::kWritten; },
                     kNoDeadline);
  *params.num_stale += target::ld(&record.kind) != FaultKind::kTimeout ||
                       target::ld(&record.late_rank) != 3 || target::ld(&record.expert) != 5 ||
                       target::ld(&record.elapsed_ns) != 13;
}
std::string run_fault_record(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  MachineOptions options = weak_options(seed);
  options.mutant = mutant;
  Machine machine(options);
  FaultRecord record{};
  uint32_t poison = 0, num_stale = 0;
  FaultParams params{{.record = &record, .poison = {&poison}, .my_rank = 0, .n_ranks = 1, .timeout_ns = 1},
                     &num_stale};
  Status status = target::launch("report", report_fault, {}, machine.create_stream(), params);
  if (status.ok()) status = target::launch("read", read_fault, {}, machine.create_stream(), params);
  if (status.ok()) status = machine.synchronize();
  if (!status.ok()) return status.to_string();
  return num_stale == 0 ? "" : "a stale fault record";
}

TEST_F(WeakMemoryProtocol, AFaultRecordIsWhole) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) ASSERT_EQ(run_fault_record(seed, std::nullopt), "");
}

// An output that is right, checked three times in a row: it must be found right, and counted.
std::string run_output_check(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const auto world = testing_support::must(World::create(
      {.target = TargetChoice::kHost,
       .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true, .mutant = mutant}}));
  Rank& rank = world->rank(0);
  const std::vector<uint64_t> output(512, kOverwrittenWord);
  auto memory = testing_support::must(rank.upload(output));
  auto check = testing_support::must(rank.upload(
      std::vector<OutputCheck>{{.expected = output_hash(output.data(), 512 * sizeof(uint64_t))}}));
  for (int i = 0; i < 3; ++i) {
    const Status status = rank.device().kernels().check_output(
        {.num_blocks = 3, .num_threads = 64}, rank.stream(),
        {check.data(), reinterpret_cast<std::byte*>(memory.data()), 512 * sizeof(uint64_t), nullptr, 0});
    if (!status.ok()) return status.to_string();
  }
  if (const Status status = rank.synchronize(); !status.ok()) return status.to_string();
  const OutputCheck seen = testing_support::must(check.download()).front();
  return seen.num_checked == 3 && seen.num_different == 0 ? "" : "an output was counted wrong";
}

TEST_F(WeakMemoryProtocol, ARightOutputIsFoundRight) {
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) ASSERT_EQ(run_output_check(seed, std::nullopt), "");
}

// The mutants: row of the table in docs/memory-model.md, and which side of it is weakened.
struct NamedMutant {
  const char* name;
  OrderMutant mutant;
  std::string (*run)(uint64_t seed, const std::optional<OrderMutant>& mutant) = run_slotted;
  // Values may come out right all the same; what shows is that a store may overtake what came before it.
  bool shows_by_overtaking = false;
};

constexpr Order kRelaxed = Order::kRelaxed;

const NamedMutant kMutants[] = {
    {"Row1FinishedReleaseIsRelaxed", {"DispatchAsync*::send(", WordKind::kAdd, kRelaxed}},
    {"Row1FinishedReleaseIsBlockScope",
     {"DispatchAsync*::send(", WordKind::kAdd, Order::kRelease, Scope::kBlock}},
    {"Row1FinishedAcquireIsRelaxed", {"DispatchAsync*::watch(", WordKind::kLoad, kRelaxed}},
    {"Row1BulkCopiesAreNotWaitedFor", {"DispatchAsync*::send(", WordKind::kBulkWait}},
    {"Row2CellReleaseIsRelaxed", {"DispatchAsync*::watch(", WordKind::kStore, kRelaxed}},
    {"Row2CellReleaseIsDeviceScope",
     {"DispatchAsync*::watch(", WordKind::kStore, Order::kRelease, Scope::kDevice}},
    {"Row2CellAcquireIsRelaxed", {"DispatchWait*::collect_counts(", WordKind::kLoad, kRelaxed}},
    {"Row4ElectionIsRelaxed", {"CombineAsync*::run(", WordKind::kAdd, kRelaxed}},
    {"Row4ElectionDoesNotAcquire", {"CombineAsync*::run(", WordKind::kAdd, Order::kRelease}},
    {"Row4ElectionDoesNotRelease", {"CombineAsync*::run(", WordKind::kAdd, Order::kAcquire}},
    {"Row5CellReleaseIsRelaxed", {"CombineAsync*::signal(", WordKind::kStore, kRelaxed}},
    {"Row5CellReleaseIsDeviceScope",
     {"CombineAsync*::signal(", WordKind::kStore, Order::kRelease, Scope::kDevice}},
    {"Row5CellAcquireIsRelaxed", {"CombineWait*::collect_rows(", WordKind::kLoad, kRelaxed}},
    {"Row7RecordReleaseIsRelaxed", {"record_fault(", WordKind::kStore, kRelaxed}, run_fault_record},
    {"Row8CountReleaseIsRelaxed",
     {"DirectDispatchAsync*::send_counts(", WordKind::kStore, kRelaxed},
     run_direct_in_place,
     true},
    {"Row8CountReleaseIsDeviceScope",
     {"DirectDispatchAsync*::send_counts(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_direct_in_place,
     true},
    {"Row8CountAcquireIsRelaxed",
     {"DirectDispatchAsync*::collect_counts(", WordKind::kLoad, kRelaxed},
     run_direct_in_place,
     true},
    {"Row9ElectionIsRelaxed", {"DirectDispatchAsync*::finish(", WordKind::kAdd, kRelaxed}, run_direct},
    {"Row9ElectionDoesNotAcquire",
     {"DirectDispatchAsync*::finish(", WordKind::kAdd, Order::kRelease},
     run_direct},
    {"Row9ElectionDoesNotRelease",
     {"DirectDispatchAsync*::finish(", WordKind::kAdd, Order::kAcquire},
     run_direct},
    {"Row9BulkCopiesAreNotWaitedFor", {"DirectDispatchAsync*::carry_rows(", WordKind::kBulkWait}, run_direct},
    {"Row10ReadyReleaseIsRelaxed", {"DirectDispatchAsync*::finish(", WordKind::kStore, kRelaxed}, run_direct},
    {"Row10ReadyReleaseIsDeviceScope",
     {"DirectDispatchAsync*::finish(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_direct},
    {"Row10ReadyAcquireIsRelaxed",
     {"DirectDispatchWait*::collect_rows(", WordKind::kLoad, kRelaxed},
     run_direct},
    {"Row11OutputReleaseIsRelaxed", {"DirectCombineAsync*::run(", WordKind::kStore, kRelaxed}, run_direct},
    {"Row11OutputReleaseIsDeviceScope",
     {"DirectCombineAsync*::run(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_direct},
    {"Row11OutputAcquireIsRelaxed",
     {"DirectCombineWait*::find_outputs(", WordKind::kLoad, kRelaxed},
     run_direct},
    {"Row9EncodedCopiesAreNotWaitedFor", {"CarryEncoded*::run(", WordKind::kBulkWait}, run_encoded},
    {"Row9EncodedElectionIsRelaxed",
     {"DirectDispatchAsync*::finish(", WordKind::kAdd, kRelaxed},
     run_encoded},
    {"Row10EncodedReadyReleaseIsRelaxed",
     {"DirectDispatchAsync*::finish(", WordKind::kStore, kRelaxed},
     run_encoded},
    {"Row10EncodedReadyAcquireIsRelaxed",
     {"DirectDispatchWait*::collect_rows(", WordKind::kLoad, kRelaxed},
     run_encoded},
    {"Row12ElectionIsRelaxed", {"CheckOutput::is_last_block(", WordKind::kAdd, kRelaxed}, run_output_check},
    {"Row12ElectionDoesNotAcquire",
     {"CheckOutput::is_last_block(", WordKind::kAdd, Order::kRelease},
     run_output_check},
    {"Row12ElectionDoesNotRelease",
     {"CheckOutput::is_last_block(", WordKind::kAdd, Order::kAcquire},
     run_output_check},
    {"Row13ElectionIsRelaxed", {"AllReduce::show_values(", WordKind::kAdd, kRelaxed}, run_all_reduce},
    {"Row13ElectionDoesNotAcquire",
     {"AllReduce::show_values(", WordKind::kAdd, Order::kRelease},
     run_all_reduce},
    {"Row13ElectionDoesNotRelease",
     {"AllReduce::show_values(", WordKind::kAdd, Order::kAcquire},
     run_all_reduce},
    {"Row14CellReleaseIsRelaxed", {"AllReduce::show_values(", WordKind::kStore, kRelaxed}, run_all_reduce},
    {"Row14CellReleaseIsDeviceScope",
     {"AllReduce::show_values(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_all_reduce},
    {"Row14CellAcquireIsRelaxed", {"AllReduce::collect(", WordKind::kLoad, kRelaxed}, run_all_reduce},
};

class OrderMutants : public WeakMemory, public testing::WithParamInterface<NamedMutant> {};

INSTANTIATE_TEST_SUITE_P(MemoryModel, OrderMutants, testing::ValuesIn(kMutants),
                         [](const auto& info) { return info.param.name; });

// By the values it leaves, where those show it: the machine is then told not to stop where a store may
// overtake something.
TEST_P(OrderMutants, IsCaught) {
  if (GetParam().run == run_fault_record) SWITCHYARD_SKIP_IF_UNCHECKED();
  constexpr uint64_t kMaxSeeds = 300;
  OrderMutant mutant = GetParam().mutant;
  mutant.stops_at_overtaking = GetParam().shows_by_overtaking;
  for (uint64_t seed = 0; seed < kMaxSeeds; ++seed) {
    const std::string difference = GetParam().run(seed, mutant);
    if (difference.empty()) continue;
    std::cout << "seed " << seed << ": " << difference << "\n";
    return;
  }
  FAIL() << "none of " << kMaxSeeds << " seeds shows it";
}

// Rows 3 and 6 need no mutant: a block counts itself out only after its waits have seen the cells filled, and
// reads no cell again, so that no load is left that the last block's reset could overtake.
TEST_F(WeakMemoryProtocol, TheElectionsOfRows3And6MayBeRelaxed) {
  for (const char* function : {"DispatchWait*::reset_cells(", "CombineWait*::reset_cells("})
    for (uint64_t seed = 0; seed < 100; ++seed)
      ASSERT_EQ(run_slotted(seed, OrderMutant{function, WordKind::kAdd, kRelaxed}), "") << function << seed;
}

}  // namespace
}  // namespace switchyard
