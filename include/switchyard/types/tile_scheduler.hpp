// Tile schedulers: which tile of attention a block works on next. An application may write one of its own and
// have the attention kernel ask it (own_attention_kernels.hpp).
//
// A scheduler is a plain object in a kernel's parameters; it owns nothing. What it needs of its block is its
// environment, a template argument, so the same type runs in a kernel, in a test and on the host. The threads
// of a block that ask go through the block's tiles together:
//
//   MHATileState state = scheduler.initial_state(mailboxes, summary);
//   for (uint32_t pipeline_idx = 0; state.is_valid(); pipeline_idx ^= 1) {
//     if (scheduler.get_current_work_info(summary, state).is_valid_tile)
//       attend(scheduler.unsafe_seq_info(summary, state));
//     scheduler.template advance<kIsProducer, kSync>(summary, state, pipeline_idx);
//   }
//
// Only a block's first place can hold no tile: the block begins there without asking anybody.
// In the attention kernel one warp of each block asks, as the producer, with MHASchedulerSynchronization
// PRODUCER. All blocks together must be given every tile exactly once.
#pragma once

#include <concepts>
#include <type_traits>

#include "switchyard/types/tile_summary.hpp"

namespace switchyard {

// The grid of a launch. Schedulers make one-dimensional grids, since an environment knows its block by one
// index; one without blocks needs no launch.
struct GridDim {
  uint32_t x = 1, y = 1, z = 1;

  SWITCHYARD_HD constexpr uint32_t num_blocks() const { return x * y * z; }
  friend bool operator==(const GridDim&, const GridDim&) = default;
};

// What a scheduler runs in: a block of a kernel, or a test. It is held by value, and passed as it is.
template <typename Environment>
concept TileEnvironment = std::is_trivially_copyable_v<Environment> &&
    requires(const Environment environment, uint32_t* word, uint32_t value) {
  // This block's index in the grid.
  { environment.block_idx() } -> std::convertible_to<uint32_t>;
  // True in the one thread of the producer that takes indices from a queue.
  { environment.is_producer_leader() } -> std::convertible_to<bool>;
  // Atomic among all blocks: adds one to *word, or sets it to 0 if it is `value`; returns the old value.
  { environment.increment_wrapping(word, value) } -> std::convertible_to<uint32_t>;
  // Broadcast: one thread writes a mailbox of shared memory, others read it after a barrier.
  {environment.publish(word, value)};
  { environment.receive(word) } -> std::convertible_to<uint32_t>;
  // Barriers over the threads of the producer, and over all of the block.
  {environment.sync_producer()};
  {environment.sync_all()};
};
// A scheduler for the persistent kernel. It is copied into the kernel's parameters.
template <typename Scheduler, typename Lengths = RowOffsets>
concept MHATileScheduler = std::is_trivially_copyable_v<Scheduler> &&
    std::same_as<typename Scheduler::device_type, Scheduler> &&
    requires(const Scheduler scheduler, const MHATileSummary<Lengths> summary, MHATileState state,
             uint32_t* mailboxes, uint32_t number, const MHATileShape shape) {
  // False: a block has one tile, and advance() always ends it.
  requires std::same_as<decltype(Scheduler::may_advance), const bool>;
  requires std::same_as<decltype(Scheduler::mha_schedule), const MHASchedule>;
  // The tile the block stands on; not valid past the end of its sequence or of the order.
  { scheduler.get_current_work_info(summary, state) } -> std::same_as<WorkInfo>;
  // Advances to the block's next tile that exists, and returns its sequence; behind the last one it returns
  // nothing, however often it is called. `pipeline_idx` is the mailbox through which the producer passes the
  // tile on: not the one of the call before.
  {
    scheduler.template advance<true, MHASchedulerSynchronization::NONE>(summary, state, number)
    } -> std::same_as<OptionalReg<SeqInfo>>;
  { scheduler.template advance<false>(summary, state, number) } -> std::same_as<OptionalReg<SeqInfo>>;
  // The grid to launch, for batch_size sequences of at most max_num_prompt_tiles tiles. Where the scheduler's
  // numbers are known at compile time, Scheduler::grid_dim(number, number) is enough.
  { Scheduler::grid_dim(number, number, shape) } -> std::same_as<GridDim>;
  // The block's first tile. `mailboxes` are at least two words of shared memory.
  { scheduler.initial_state(mailboxes, summary) } -> std::same_as<MHATileState>;
  // The sequence of the tile the block stands on, which must lie before the end of the order.
  { scheduler.unsafe_seq_info(summary, state) } -> std::same_as<SeqInfo>;
  { Scheduler::get_type_name() } -> std::convertible_to<const char*>;
};

// What schedulers have in common: a shape, an environment, an order, and the way from a place of the order to
// a tile. A scheduler that derives from it has to write advance(), device_type, may_advance and
// get_type_name(), and initial_state() if its blocks do not begin at the place of their index. Numbers of the
// shape that are known at compile time stand in kShape, where 0 is unknown; the rest is given to the object.
template <MHASchedule kSchedule, TileEnvironment Environment, MHATileShape kShape = MHATileShape{}>
class TileSchedulerBase {
 public:
  static constexpr MHASchedule mha_schedule = kSchedule;

  SWITCHYARD_HD constexpr explicit TileSchedulerBase(const MHATileShape& shape, Environment environment = {})
      : environment_(environment), shape_(shape) {}

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
  SWITCHYARD_HD MHATileState initial_state(uint32_t* mailboxes,
                                           const MHATileSummary<Lengths>& summary) const {
    return state_at(environment_.block_idx(), summary.max_idx(shape().num_heads), mailboxes, summary);
  }
  // The grid of persistent blocks. A block that would have no place to begin at is left out.
  SWITCHYARD_HD static constexpr GridDim grid_dim(uint32_t batch_size, uint32_t max_num_prompt_tiles,
                                                  const MHATileShape& shape) {
    const uint32_t num_ctas = with_fixed(shape).num_ctas;
    const uint32_t num_blocks = num_places(batch_size, max_num_prompt_tiles, shape);
    return {num_blocks < num_ctas ? num_blocks : num_ctas};
  }
  SWITCHYARD_HD static constexpr GridDim grid_dim(
      uint32_t batch_size,
      uint32_t max_num_prompt_tiles) requires(kShape.num_heads != 0 && kShape.num_ctas != 0) {
    return grid_dim(batch_size, max_num_prompt_tiles, kShape);
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
  // A block's walk from place `idx` on, up to `end_idx`.
  template <ValidLength Lengths>
  SWITCHYARD_HD MHATileState state_at(uint32_t idx, uint32_t end_idx, uint32_t* mailboxes,
                                      const MHATileSummary<Lengths>& summary) const {
    MHATileState state{idx, end_idx, mailboxes};
    move_to(summary, state, state.idx);
    return state;
  }
  // Goes on by `stride` places until there is a tile, or to the end. No thread needs another for it.
  template <ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance_by(uint32_t stride, const MHATileSummary<Lengths>& summary,
                                                MHATileState& state) const {
    OptionalReg<SeqInfo> info;
    while (!info && state.is_valid()) {
      move_to(summary, state, state.idx + stride);
      info = valid_seq_info(summary, state);
    }
    return info;
  }
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
  // Not [[no_unique_address]], and not last: nvcc lays that out in another way for the host than for kernels.
  Environment environment_;
  MHATileShape shape_;
};

}  // namespace switchyard
