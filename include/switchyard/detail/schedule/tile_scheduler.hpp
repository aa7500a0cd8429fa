// What a persistent attention kernel asks of a tile scheduler, and what a scheduler asks of the place it runs
// in. A kernel's threads go through their block's tiles together:
//
//   MHATileState state = scheduler.initial_state(slots, summary);
//   for (uint32_t pipeline_idx = 0; state.is_valid(); pipeline_idx ^= 1) {
//     if (scheduler.get_current_work_info(summary, state).is_valid_tile)
//       attend(scheduler.unsafe_seq_info(summary, state));
//     scheduler.template advance<kIsProducer, kSync>(summary, state, pipeline_idx);
//   }
//
// Only the first tile can be one that is not there: a block begins at its own index without asking anybody.
#pragma once

#include <concepts>
#include <type_traits>

#include "switchyard/detail/schedule/tile_summary.hpp"

namespace switchyard {

// The grid of a launch. Schedulers make one-dimensional grids, since an environment knows its block by one
// index; one without blocks needs no launch.
struct GridDim {
  uint32_t x = 1, y = 1, z = 1;

  SWITCHYARD_HD constexpr uint32_t num_blocks() const { return x * y * z; }
  friend bool operator==(const GridDim&, const GridDim&) = default;
};

// The place a scheduler runs in: a block of a kernel, or a test. Held by value, and as passable.
template <typename Environment>
concept TileEnvironment = std::is_trivially_copyable_v<Environment> &&
    requires(const Environment environment, uint32_t* word, uint32_t value) {
  // This block's index in the grid.
  { environment.block_idx() } -> std::convertible_to<uint32_t>;
  // True in the one thread of the producer that takes indices from a queue.
  { environment.is_producer_leader() } -> std::convertible_to<bool>;
  // Indivisible among all blocks: adds one to *word, or makes 0 of `value`; returns what it was.
  { environment.increment_wrapping(word, value) } -> std::convertible_to<uint32_t>;
  // Broadcast: one thread writes a slot of shared memory, others read it after a barrier.
  {environment.publish(word, value)};
  { environment.receive(word) } -> std::convertible_to<uint32_t>;
  // Barriers over the threads of the producer, and over all of the block.
  {environment.sync_producer()};
  {environment.sync_all()};
};

// A schedule for the persistent kernel. What it is passed as to a kernel is what it is.
template <typename Scheduler, typename Lengths = RowOffsets>
concept MHATileScheduler = std::is_trivially_copyable_v<Scheduler> &&
    std::same_as<typename Scheduler::device_type, Scheduler> &&
    requires(const Scheduler scheduler, const MHATileSummary<Lengths> summary, MHATileState state,
             uint32_t* slots, uint32_t number, const MHATileShape shape) {
  // False: a block has one tile, and advance() always ends it.
  requires std::same_as<decltype(Scheduler::may_advance), const bool>;
  requires std::same_as<decltype(Scheduler::mha_schedule), const MHASchedule>;
  // The tile the block stands on; not valid past the end of its sequence or of the order.
  { scheduler.get_current_work_info(summary, state) } -> std::same_as<WorkInfo>;
  // Goes on to the block's next tile that is there, and returns its sequence; nothing if there is none, from
  // then on always. `pipeline_idx` is the slot of shared memory through which the tile is told: not the one
  // of the call before.
  {
    scheduler.template advance<true, MHASchedulerSynchronization::NONE>(summary, state, number)
    } -> std::same_as<OptionalReg<SeqInfo>>;
  { scheduler.template advance<false>(summary, state, number) } -> std::same_as<OptionalReg<SeqInfo>>;
  // The grid to launch, for batch_size sequences of at most max_num_prompt_tiles tiles. Where the scheduler's
  // numbers are known at compile time, Scheduler::grid_dim(number, number) is enough.
  { Scheduler::grid_dim(number, number, shape) } -> std::same_as<GridDim>;
  // The block's first tile. `slots` are at least two words of shared memory.
  { scheduler.initial_state(slots, summary) } -> std::same_as<MHATileState>;
  // The sequence of the tile the block stands on, which must lie before the end of the order.
  { scheduler.unsafe_seq_info(summary, state) } -> std::same_as<SeqInfo>;
  { Scheduler::get_type_name() } -> std::convertible_to<const char*>;
};

}  // namespace switchyard
