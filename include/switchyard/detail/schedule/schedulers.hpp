// The three tile schedulers. Each takes an order, the environment it runs in and, where they are known at
// compile time, the numbers of its shape; those that are 0 there are given to the object.
#pragma once

#include "switchyard/types/tile_scheduler.hpp"

namespace switchyard {

// The name of a scheduler as a template argument, followed by that of an order: "TileScheduler<LPT>".
template <size_t kSize>
struct FixedText {
  char text[kSize] = {};

  FixedText() = default;
  constexpr FixedText(const char (&literal)[kSize]) {  // NOLINT
    for (size_t i = 0; i < kSize; ++i) text[i] = literal[i];
  }
};
template <FixedText kName, MHASchedule kSchedule>
struct NameWithOrder {
  static constexpr auto make() {
    FixedText<sizeof(kName.text) + 16> name;
    size_t size = 0;
    for (size_t i = 0; kName.text[i] != 0; ++i) name.text[size++] = kName.text[i];
    const char* order = kOrders[static_cast<size_t>(kSchedule)].type_name;
    for (; *order != 0; ++order) name.text[size++] = *order;
    return name;
  }
  static constexpr auto kValue = make();
};

// One tile per block. The grid has a block for every place of the order; blocks without a tile end.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape = MHATileShape{}>
class TransientScheduler : public TileSchedulerBase<kSchedule, Environment, kShape> {
  using Base = TileSchedulerBase<kSchedule, Environment, kShape>;

 public:
  using Base::Base;
  using device_type = TransientScheduler;
  static constexpr bool may_advance = false;

  template <bool producer, MHASchedulerSynchronization sync = MHASchedulerSynchronization::DEFAULT,
            ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance(const MHATileSummary<Lengths>&, MHATileState& state,
                                             uint32_t /*pipeline_idx*/) const {
    state.idx = state.max_idx;
    return {};
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(uint32_t batch_size, uint32_t max_num_prompt_tiles,
                                                  const MHATileShape& shape) {
    return {Base::num_places(batch_size, max_num_prompt_tiles, shape)};
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(uint32_t batch_size,
                                                  uint32_t max_num_prompt_tiles) requires(kShape.num_heads !=
                                                                                          0) {
    return grid_dim(batch_size, max_num_prompt_tiles, kShape);
  }
  static constexpr const char* get_type_name() {
    return NameWithOrder<"TransientScheduler", kSchedule>::kValue.text;
  }
};

// Every block begins at the place of its index and strides by the number of blocks. No thread needs another
// to know its next tile.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape = MHATileShape{}>
class TileScheduler : public TileSchedulerBase<kSchedule, Environment, kShape> {
  using Base = TileSchedulerBase<kSchedule, Environment, kShape>;

 public:
  using Base::Base;
  using device_type = TileScheduler;
  static constexpr bool may_advance = true;

  template <bool producer, MHASchedulerSynchronization sync = MHASchedulerSynchronization::DEFAULT,
            ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance(const MHATileSummary<Lengths>& summary, MHATileState& state,
                                             uint32_t /*pipeline_idx*/) const {
    return this->advance_by(this->shape().num_ctas, summary, state);
  }
  static constexpr const char* get_type_name() {
    return NameWithOrder<"TileScheduler", kSchedule>::kValue.text;
  }
};

// Every block begins at the place of its index, and then takes the next place that no block has taken. The
// queue is one word of memory, 0 before the first launch, and 0 again after each: max_idx blocks and tiles
// make max_idx increments together (every place past the first ones is taken once, and every block that had
// one asks once without success), and the last of them wraps. So a launch can be replayed as it is; two that
// overlap need a queue each.
//
// Only the leader of the producer asks the queue, until it has a place that holds a tile; it publishes the
// index in mailbox pipeline_idx. With sync NONE it is the whole producer. With PRODUCER the other threads of
// the producer learn the index inside advance(). In both cases the kernel's pipeline tells its consumers:
// they call advance<false>() when the mailbox is full, and it is overwritten when they have read it. With ALL
// every thread of the block calls advance() and meets the others there.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape = MHATileShape{}>
class QueuedTileScheduler : public TileSchedulerBase<kSchedule, Environment, kShape> {
  using Base = TileSchedulerBase<kSchedule, Environment, kShape>;

 public:
  using device_type = QueuedTileScheduler;
  static constexpr bool may_advance = true;

  SWITCHYARD_HD constexpr QueuedTileScheduler(uint32_t* queue, const MHATileShape& shape,
                                              Environment environment = {})
      : Base(shape, environment), gidx_ptr(queue) {}

  SWITCHYARD_NO_EXEC_CHECK
  template <bool producer, MHASchedulerSynchronization sync = MHASchedulerSynchronization::DEFAULT,
            ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance(const MHATileSummary<Lengths>& summary, MHATileState& state,
                                             uint32_t pipeline_idx) const {
    if (!state.is_valid()) return {};  // all threads know it: none waits or asks the queue again
    uint32_t* mailbox = state.sidx_ptr + pipeline_idx;
    if constexpr (producer) {
      if (sync == MHASchedulerSynchronization::NONE || this->environment_.is_producer_leader()) {
        take(summary, state);
        this->environment_.publish(mailbox, state.idx);
      }
    }
    if constexpr (sync == MHASchedulerSynchronization::ALL)
      this->environment_.sync_all();
    else if constexpr (producer && sync == MHASchedulerSynchronization::PRODUCER)
      this->environment_.sync_producer();
    if constexpr (!producer || sync != MHASchedulerSynchronization::NONE)
      this->move_to(summary, state, this->environment_.receive(mailbox));
    return this->valid_seq_info(summary, state);
  }
  static constexpr const char* get_type_name() {
    return NameWithOrder<"QueuedTileScheduler", kSchedule>::kValue.text;
  }

  uint32_t* gidx_ptr;  // the queue

 private:
  // Returns the next place that holds a tile, or the end.
  SWITCHYARD_NO_EXEC_CHECK
  template <ValidLength Lengths>
  SWITCHYARD_HD void take(const MHATileSummary<Lengths>& summary, MHATileState& state) const {
    do {
      const uint32_t num_taken = this->environment_.increment_wrapping(gidx_ptr, state.max_idx - 1);
      this->move_to(summary, state, this->shape().num_ctas + num_taken);
    } while (state.is_valid() && !this->valid_seq_info(summary, state));
  }
};

// A scheduler of any type: only some have a queue.
template <typename Scheduler, TileEnvironment Environment>
SWITCHYARD_HD SWITCHYARD_FORCE_INLINE constexpr Scheduler make_scheduler(uint32_t* queue,
                                                                         const MHATileShape& shape,
                                                                         Environment environment = {}) {
  if constexpr (std::is_constructible_v<Scheduler, uint32_t*, const MHATileShape&, Environment>)
    return Scheduler(queue, shape, environment);
  else
    return Scheduler(shape, environment);
}

// Calls visit(std::type_identity<Scheduler>) with the scheduler of a kind.
SWITCHYARD_NO_EXEC_CHECK
template <MHASchedule kSchedule, TileEnvironment Environment, typename Visit>
SWITCHYARD_HD SWITCHYARD_FORCE_INLINE void with_scheduler(TileSchedulerKind kind, const Visit& visit) {
  switch (kind) {
    case TileSchedulerKind::kTransient:
      return visit(std::type_identity<TransientScheduler<kSchedule, Environment>>{});
    case TileSchedulerKind::kTile:
      return visit(std::type_identity<TileScheduler<kSchedule, Environment>>{});
    case TileSchedulerKind::kQueued:
      return visit(std::type_identity<QueuedTileScheduler<kSchedule, Environment>>{});
    case TileSchedulerKind::kAutomatic:
      return;
  }
}

}  // namespace switchyard
