// The queue as kernels use it: a producer takes tiles and tells its consumers through shared memory, with
// each kind of synchronisation. Compiled for the host and, through cuda_tests.cu, for CUDA.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "sweep.hpp"
#include "switchyard/detail/attention/tile_environment.hpp"
#include "switchyard/detail/schedule/schedulers.hpp"
#include "switchyard/detail/schedule/tile_plan.hpp"
#include "switchyard/world.hpp"
#include "target/target_fixture.hpp"

#define ScheduleKernel SWITCHYARD_SUITE(ScheduleKernel)

namespace switchyard {
namespace {

using Sync = MHASchedulerSynchronization;
using testing_support::must;

class ScheduleKernel : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, ScheduleKernel, testing_support::modes_of_target(),
                         testing_support::mode_name);

constexpr int kNumThreads = 4 * kWarpSize;
constexpr uint32_t kNumMailboxes = 2;

// Producers first, then consumers. Each thread that takes part says so for each tile.
template <Sync kSync>
inline constexpr int kNumProducers = kSync == Sync::NONE ? 1 : 2 * kWarpSize;
template <Sync kSync>
inline constexpr int kFirstConsumer = kSync == Sync::NONE ? kWarpSize : kNumProducers<kSync>;

template <MHASchedule kSchedule, Sync kSync>
using QueuedIn =
    QueuedTileScheduler<kSchedule,
                        BlockEnvironment<ProducerThreads{.first_producer_thread = 0,
                                                         .num_producer_threads = kNumProducers<kSync>}>>;

template <MHASchedule kSchedule, Sync kSync>
struct QueueParams {
  QueuedIn<kSchedule, kSync> scheduler;
  MHATileSummary<RowOffsets> summary;
  uint32_t* num_attended;  // [batch_size][num_heads][max_num_prompt_tiles]
};

struct QueueShared {
  target::TransferBarrier full[kNumMailboxes], empty[kNumMailboxes];
  uint32_t mailboxes[kNumMailboxes];
};

template <typename Params>
SWITCHYARD_DEVICE void attend(const Params& params, const MHATileState& state) {
  const WorkInfo work = params.scheduler.get_current_work_info(params.summary, state);
  if (!work.is_valid_tile) return;
  const MHATileShape shape = params.scheduler.shape();
  const uint32_t tile = work.prompt_offset / shape.tile_shape;
  target::atomic_add_relaxed_device(
      params.num_attended +
          (work.prompt_idx * shape.num_heads + work.head_idx) * params.summary.max_num_prompt_tiles + tile,
      1u);
}

SWITCHYARD_DEVICE void wait_for_phase(target::TransferBarrier& barrier, uint32_t round) {
  target::wait_until([&] { return barrier.done(round / kNumMailboxes % 2); }, kNoDeadline);
}

template <bool kIsProducer, Sync kSync, typename Params>
SWITCHYARD_DEVICE void go_through_tiles(const Params& params, QueueShared& shared) {
  MHATileState state = params.scheduler.initial_state(shared.mailboxes, params.summary);
  for (uint32_t round = 0; state.is_valid(); ++round) {
    attend(params, state);
    const uint32_t mailbox = round % kNumMailboxes;
    if constexpr (kSync != Sync::ALL) {
      if (!kIsProducer) wait_for_phase(shared.full[mailbox], round);
      if (kIsProducer && round >= kNumMailboxes) wait_for_phase(shared.empty[mailbox], round - kNumMailboxes);
    }
    params.scheduler.template advance<kIsProducer, kSync>(params.summary, state, mailbox);
    if constexpr (kSync == Sync::ALL) continue;
    if (!kIsProducer)
      shared.empty[mailbox].arrive();  // read; pairs with the producer's wait for its next use
    else if (target::thread_idx() == 0)
      shared.full[mailbox].arrive();  // release: publishes the index; pairs with the consumers' wait
  }
}

template <MHASchedule kSchedule, Sync kSync>
SWITCHYARD_KERNEL void run_queue(QueueParams<kSchedule, kSync> params) {
  QueueShared& shared = target::shared_storage<QueueShared>();
  if (target::thread_idx() == 0)
    for (uint32_t mailbox = 0; mailbox < kNumMailboxes; ++mailbox) {
      shared.full[mailbox].init(1);
      shared.empty[mailbox].init(static_cast<uint32_t>(kNumThreads - kFirstConsumer<kSync>));
    }
  target::sync_block();
  if (target::thread_idx() < kNumProducers<kSync>)
    go_through_tiles<true, kSync>(params, shared);
  else if (target::thread_idx() >= kFirstConsumer<kSync>)
    go_through_tiles<false, kSync>(params, shared);
}

struct PlanParams {
  const uint32_t* row_offsets;
  uint32_t batch_size;
  uint32_t tile_shape;
  MHATilePlan plan;
};

SWITCHYARD_KERNEL void plan_longest_first(PlanParams params) {
  const uint32_t stride = static_cast<uint32_t>(target::num_blocks() * target::num_threads());
  for (uint32_t i = static_cast<uint32_t>(target::block_idx() * target::num_threads() + target::thread_idx());
       i < params.batch_size; i += stride)
    plan_sequence<MHASchedule::LPT>(params.row_offsets, params.batch_size, params.tile_shape, i, params.plan);
}

struct QueueCase {
  std::vector<uint32_t> lengths;
  MHATileShape shape;
  bool has_plan = false;
};

const QueueCase kCases[] = {
    {{5, 0, 9, 1, 0, 3}, {2, 3, 4}}, {{5, 0, 9, 1, 0, 3}, {2, 3, 4, 6, 3}, true},
    {{0, 0, 0, 1}, {2, 1, 5}},  // first tiles that are not there, and blocks without any
    {{1}, {2, 1, 3}, true},          {{0, 0}, {2, 2, 3}, true},
};

template <MHASchedule kSchedule, Sync kSync, typename Launch>
std::string compare_queue(Rank& rank, const QueueCase& queue_case, const Launch& launch) {
  const uint32_t batch_size = static_cast<uint32_t>(queue_case.lengths.size());
  std::vector<uint32_t> offsets = {0};
  uint32_t max_len = 0;
  for (const uint32_t length : queue_case.lengths) {
    offsets.push_back(offsets.back() + length);
    max_len = std::max(max_len, length);
  }
  const MHATileShape& shape = queue_case.shape;
  const uint32_t max_tiles = (max_len + shape.tile_shape - 1) / shape.tile_shape;
  const auto row_offsets = must(rank.upload(offsets)), queue = must(rank.upload<uint32_t>({0})),
             order = must(rank.allocate<uint32_t>(batch_size)),
             tile_offsets = must(rank.allocate<uint32_t>(batch_size + 1)),
             num_attended = must(rank.allocate<uint32_t>(batch_size * shape.num_heads * max_tiles + 1));
  MHATileSummary<RowOffsets> summary{batch_size, max_tiles, {row_offsets.data()}, max_len};
  if (queue_case.has_plan) {
    summary.plan = {order.data(), tile_offsets.data()};
    const Status planned =
        target::launch("plan", plan_longest_first, {.num_blocks = 2}, rank.stream(),
                       PlanParams{row_offsets.data(), batch_size, shape.tile_shape, summary.plan});
    if (!planned.ok()) return planned.to_string();
  }
  const QueueParams<kSchedule, kSync> params{QueuedIn<kSchedule, kSync>(queue.data(), shape), summary,
                                             num_attended.data()};
  const GridDim grid = QueuedIn<kSchedule, kSync>::grid_dim(batch_size, max_tiles, shape);
  const LaunchShape launch_shape{.num_blocks = grid.num_blocks(),
                                 .num_threads = static_cast<uint32_t>(kNumThreads),
                                 .shared_bytes = sizeof(QueueShared)};
  constexpr uint32_t kNumLaunches = 3;
  const Status status = launch(kNumLaunches, [&] {
    if (grid.num_blocks() == 0) return Status();
    return target::launch("queue", run_queue<kSchedule, kSync>, launch_shape, rank.stream(), params);
  });
  if (!status.ok()) return status.to_string();

  if (must(queue.download()).front() != 0) return "the queue is not back at its start";
  const uint32_t num_per_tile =
      kNumLaunches * static_cast<uint32_t>(kNumProducers<kSync> + kNumThreads - kFirstConsumer<kSync>);
  const std::vector<uint32_t> seen = must(num_attended.download());
  for (uint32_t sequence = 0, i = 0; sequence < batch_size; ++sequence)
    for (uint32_t head = 0; head < shape.num_heads; ++head)
      for (uint32_t tile = 0; tile < max_tiles; ++tile, ++i) {
        const uint32_t expected = tile * shape.tile_shape < queue_case.lengths[sequence] ? num_per_tile : 0;
        if (seen[i] != expected)
          return "sequence " + std::to_string(sequence) + ", head " + std::to_string(head) + ", tile " +
                 std::to_string(tile) + ": " + std::to_string(seen[i]) + " threads, not " +
                 std::to_string(expected);
      }
  return "";
}

// Back to back, with nothing in between.
template <typename Enqueue>
Status launch_in_a_row(Rank& rank, uint32_t num_launches, const Enqueue& enqueue) {
  for (uint32_t i = 0; i < num_launches; ++i) SWITCHYARD_RETURN_IF_ERROR(enqueue());
  return rank.synchronize();
}

template <Sync kSync>
void check_cases(Rank& rank) {
  const auto launch = [&](uint32_t num_launches, const auto& enqueue) {
    return launch_in_a_row(rank, num_launches, enqueue);
  };
  for (const QueueCase& queue_case : kCases) {
    EXPECT_EQ((compare_queue<MHASchedule::DEFAULT, kSync>(rank, queue_case, launch)), "");
    EXPECT_EQ((compare_queue<MHASchedule::LPT, kSync>(rank, queue_case, launch)), "");
  }
}

TEST_P(ScheduleKernel, OneProducerThreadTellsItsConsumers) { check_cases<Sync::NONE>(rank()); }
TEST_P(ScheduleKernel, ProducerWarpsAgreeAndTellTheirConsumers) { check_cases<Sync::PRODUCER>(rank()); }
TEST_P(ScheduleKernel, AllThreadsOfABlockAgree) { check_cases<Sync::ALL>(rank()); }

TEST_P(ScheduleKernel, AGraphReplaysTheQueueWithoutAMemset) {
  const auto world = must(
      World::create({.target = testing_support::kTargetUnderTest, .host = {.mode = GetParam(), .seed = 5}}));
  Rank& one = world->rank(0);
  const auto launch = [&](uint32_t num_launches, const auto& enqueue) {
    auto graph = world->capture(enqueue);
    if (!graph.ok()) return graph.status();
    return launch_in_a_row(one, num_launches, [&] { return graph.value()->launch(); });
  };
  EXPECT_EQ((compare_queue<MHASchedule::LPT, Sync::PRODUCER>(one, kCases[1], launch)), "");
}

#if !defined(__CUDACC__)
// Many interleavings, on a memory that keeps what no barrier made it give.
template <Sync kSync>
void check_seeds() {
  constexpr uint64_t kNumSeeds = testing_support::kFewCases ? 1 : testing_support::kFewRepeats ? 5 : 25;
  for (uint64_t seed = 1; seed <= kNumSeeds && !testing::Test::HasFailure(); ++seed)
    for (const bool weak : {false, true}) {
      const auto world =
          must(World::create({.target = TargetChoice::kHost,
                              .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = weak}}));
      Rank& rank = world->rank(0);
      const auto launch = [&](uint32_t num_launches, const auto& enqueue) {
        return launch_in_a_row(rank, num_launches, enqueue);
      };
      for (const QueueCase& queue_case : {kCases[0], kCases[2], kCases[3]})
        EXPECT_EQ((compare_queue<MHASchedule::LPT, kSync>(rank, queue_case, launch)), "")
            << "seed " << seed << (weak ? ", weak" : "");
    }
}

TEST(ScheduleSeeds, OneProducerThread) { check_seeds<Sync::NONE>(); }
TEST(ScheduleSeeds, ProducerWarps) { check_seeds<Sync::PRODUCER>(); }
TEST(ScheduleSeeds, AllThreads) { check_seeds<Sync::ALL>(); }
#endif

}  // namespace
}  // namespace switchyard
