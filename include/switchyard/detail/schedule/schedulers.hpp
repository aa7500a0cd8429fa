// The three tile schedulers. Each takes an order, the environment it runs in and, where they are known at
// compile time, the numbers of its shape; those that are 0 there are given to the object.
#pragma once

#include "switchyard/detail/schedule/tile_scheduler.hpp"

namespace switchyard {

// What the schedulers have in common: a shape, an environment and an order.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape>
class TileSchedulerBase {
 public:
  static constexpr MHASchedule mha_schedule = kSchedule;

  template <ValidLength Lengths>
  SWITCHYARD_HD WorkInfo get_current_work_info(const MHATileSummary<Lengths>& summary,
                                               const MHATileState& state) const {
    return summary.template get_current_work_info<kSchedule>(shape(), state);
  }
  template <ValidLength Lengths>
  SWITCHYARD_HD SeqInfo unsafe_seq_info(const MHATileSummary<Lengths>& summary,
                                        const MHATileState& state) const {
    return summary.seq_info(
        summary.template unsafe_get_current_work_info<kSchedule>(shape(), state.idx, state.first_position));
  }
  SWITCHYARD_NO_EXEC_CHECK
  template <ValidLength Lengths>
  SWITCHYARD_HD MHATileState initial_state(uint32_t* slots, const MHATileSummary<Lengths>& summary) const {
    MHATileState state{environment_.block_idx(), summary.max_idx(shape().num_heads), slots};
    move_to(summary, state, state.idx);
    return state;
  }
  SWITCHYARD_HD constexpr MHATileShape shape() const { return with_fixed(shape_); }

 protected:
  // A shape with the numbers that are known at compile time.
  SWITCHYARD_HD static constexpr MHATileShape with_fixed(MHATileShape shape) {
    if (kShape.tile_shape != 0) shape.tile_shape = kShape.tile_shape;
    if (kShape.num_heads != 0) shape.num_heads = kShape.num_heads;
    if (kShape.num_ctas != 0) shape.num_ctas = kShape.num_ctas;
    if (kShape.kv_rows_in_l2 != 0) shape.kv_rows_in_l2 = kShape.kv_rows_in_l2;
    if (kShape.heads_per_kv_head != 1) shape.heads_per_kv_head = kShape.heads_per_kv_head;
    return shape;
  }
  // The places of the order, unless a plan leaves some out.
  SWITCHYARD_HD static constexpr uint32_t num_places(uint32_t batch_size, uint32_t max_num_prompt_tiles,
                                                     const MHATileShape& shape) {
    return batch_size * with_fixed(shape).num_heads * max_num_prompt_tiles;
  }
  // The grid of blocks that go on from tile to tile: a block that would have no place to begin at is left
  // out.
  SWITCHYARD_HD static constexpr GridDim persistent_grid(uint32_t batch_size, uint32_t max_num_prompt_tiles,
                                                         const MHATileShape& shape) {
    const uint32_t num_ctas = with_fixed(shape).num_ctas;
    const uint32_t num_blocks = num_places(batch_size, max_num_prompt_tiles, shape);
    return {num_blocks < num_ctas ? num_blocks : num_ctas};
  }

  SWITCHYARD_HD constexpr TileSchedulerBase(const MHATileShape& shape, Environment environment)
      : environment_(environment), shape_(shape) {}

  template <ValidLength Lengths>
  SWITCHYARD_HD void move_to(const MHATileSummary<Lengths>& summary, MHATileState& state,
                             uint32_t idx) const {
    state.idx = idx;
    if (summary.has_plan() && state.is_valid())
      state.first_position = summary.find_position(idx, shape().num_heads, state.first_position);
  }
  // The tile at the state's place: nothing past the end of the order, or of the sequence.
  template <ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> valid_seq_info(const MHATileSummary<Lengths>& summary,
                                                    const MHATileState& state) const {
    if (!state.is_valid()) return {};
    const SeqInfo info = unsafe_seq_info(summary, state);
    return info.is_valid() ? OptionalReg<SeqInfo>(info) : OptionalReg<SeqInfo>();
  }
  SWITCHYARD_HD static constexpr const char* name_of_order(const char* by_default, const char* rotated,
                                                           const char* longest_first) {
    return kSchedule == MHASchedule::DEFAULT         ? by_default
           : kSchedule == MHASchedule::PROMPT_ROTATE ? rotated
                                                     : longest_first;
  }

  // Not [[no_unique_address]], and not last: nvcc lays that out in another way for the host than for kernels.
  Environment environment_;
  MHATileShape shape_;
};

// One tile per block. The grid has a block for every place of the order, and those with no tile there end.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape = MHATileShape{}>
class TransientScheduler : public TileSchedulerBase<kSchedule, Environment, kShape> {
  using Base = TileSchedulerBase<kSchedule, Environment, kShape>;

 public:
  using device_type = TransientScheduler;
  static constexpr bool may_advance = false;

  SWITCHYARD_HD constexpr explicit TransientScheduler(const MHATileShape& shape, Environment environment = {})
      : Base(shape, environment) {}

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
  SWITCHYARD_HD static constexpr const char* get_type_name() {
    return Base::name_of_order("TransientScheduler<DEFAULT>", "TransientScheduler<PROMPT_ROTATE>",
                               "TransientScheduler<LPT>");
  }
};

// Every block takes its index, and goes on by the number of blocks. No thread needs another to know its next
// tile.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape = MHATileShape{}>
class TileScheduler : public TileSchedulerBase<kSchedule, Environment, kShape> {
  using Base = TileSchedulerBase<kSchedule, Environment, kShape>;

 public:
  using device_type = TileScheduler;
  static constexpr bool may_advance = true;

  SWITCHYARD_HD constexpr explicit TileScheduler(const MHATileShape& shape, Environment environment = {})
      : Base(shape, environment) {}

  template <bool producer, MHASchedulerSynchronization sync = MHASchedulerSynchronization::DEFAULT,
            ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance(const MHATileSummary<Lengths>& summary, MHATileState& state,
                                             uint32_t /*pipeline_idx*/) const {
    OptionalReg<SeqInfo> info;
    while (!info && state.is_valid()) {
      this->move_to(summary, state, state.idx + this->shape().num_ctas);
      info = this->valid_seq_info(summary, state);
    }
    return info;
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(uint32_t batch_size, uint32_t max_num_prompt_tiles,
                                                  const MHATileShape& shape) {
    return Base::persistent_grid(batch_size, max_num_prompt_tiles, shape);
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(
      uint32_t batch_size,
      uint32_t max_num_prompt_tiles) requires(kShape.num_heads != 0 && kShape.num_ctas != 0) {
    return grid_dim(batch_size, max_num_prompt_tiles, kShape);
  }
  SWITCHYARD_HD static constexpr const char* get_type_name() {
    return Base::name_of_order("TileScheduler<DEFAULT>", "TileScheduler<PROMPT_ROTATE>",
                               "TileScheduler<LPT>");
  }
};

// Every block takes its index, and then the next one nobody has. The queue is one word of memory, 0 before
// the first launch, and 0 again after each: max_idx blocks and tiles make max_idx increments together (every
// place past the first ones is taken once, and every block that had one looks once in vain), and the last of
// them wraps. So a launch can be replayed as it is; two that overlap need a queue each.
//
// Only the leader of the producer asks the queue, until it has a tile that is there; it tells the index
// through slot pipeline_idx. With sync NONE it is the whole producer. With PRODUCER the other threads of the
// producer learn it inside advance(). In both the kernel's pipeline tells its consumers: they call
// advance<false>() when the slot is full, and the slot is written again when they have read it. With ALL
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
    if (!state.is_valid()) return {};  // all threads know: nobody waits, and the queue is not asked again
    uint32_t* slot = state.sidx_ptr + pipeline_idx;
    if constexpr (producer) {
      if (sync == MHASchedulerSynchronization::NONE || this->environment_.is_producer_leader()) {
        take(summary, state);
        this->environment_.publish(slot, state.idx);
      }
    }
    if constexpr (sync == MHASchedulerSynchronization::ALL)
      this->environment_.sync_all();
    else if constexpr (producer && sync == MHASchedulerSynchronization::PRODUCER)
      this->environment_.sync_producer();
    if constexpr (!producer || sync != MHASchedulerSynchronization::NONE)
      this->move_to(summary, state, this->environment_.receive(slot));
    return this->valid_seq_info(summary, state);
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(uint32_t batch_size, uint32_t max_num_prompt_tiles,
                                                  const MHATileShape& shape) {
    return Base::persistent_grid(batch_size, max_num_prompt_tiles, shape);
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(
      uint32_t batch_size,
      uint32_t max_num_prompt_tiles) requires(kShape.num_heads != 0 && kShape.num_ctas != 0) {
    return grid_dim(batch_size, max_num_prompt_tiles, kShape);
  }
  SWITCHYARD_HD static constexpr const char* get_type_name() {
    return Base::name_of_order("QueuedTileScheduler<DEFAULT>", "QueuedTileScheduler<PROMPT_ROTATE>",
                               "QueuedTileScheduler<LPT>");
  }

  uint32_t* gidx_ptr;  // the queue

 private:
  // The next tile that is there, or the end.
  SWITCHYARD_NO_EXEC_CHECK
  template <ValidLength Lengths>
  SWITCHYARD_HD void take(const MHATileSummary<Lengths>& summary, MHATileState& state) const {
    do {
      const uint32_t num_taken = this->environment_.increment_wrapping(gidx_ptr, state.max_idx - 1);
      this->move_to(summary, state, this->shape().num_ctas + num_taken);
    } while (state.is_valid() && !this->valid_seq_info(summary, state));
  }
};

}  // namespace switchyard
