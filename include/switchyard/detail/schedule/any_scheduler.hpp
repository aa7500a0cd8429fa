// A scheduler that is chosen at the call, and a block's walk through the tiles it gives. In the attention
// kernel only the planner asks, so the choice costs a switch per tile and no separate kernel.
#pragma once

#include "switchyard/detail/schedule/one_thread.hpp"
#include "switchyard/detail/schedule/schedulers.hpp"
#include "switchyard/detail/schedule/tile_order_params.hpp"

namespace switchyard {

// Calls visit(summary) with the lengths that the launch has.
SWITCHYARD_NO_EXEC_CHECK
template <typename Visit>
SWITCHYARD_HD SWITCHYARD_FORCE_INLINE void with_summary(const TileOrderParams& params, const Visit& visit) {
  if (params.row_offsets == nullptr)
    visit(params.summary(CommonLength{}));
  else
    visit(params.summary(RowOffsets{params.row_offsets}));
}

// The scheduler that the parameters name.
template <TileEnvironment Environment>
struct AnyScheduler {
  // Calls visit(scheduler, summary).
  SWITCHYARD_NO_EXEC_CHECK
  template <typename Visit>
  SWITCHYARD_HD SWITCHYARD_FORCE_INLINE static void visit(const TileOrderParams& params, const Visit& visit) {
    with_order(params.order, [&](auto order) {
      with_summary(params, [&](const auto& summary) {
        with_scheduler<decltype(order)::value, Environment>(params.kind, [&](auto type) {
          using Scheduler = typename decltype(type)::type;
          visit(make_scheduler<Scheduler>(params.queue, params.shape, Environment{}), summary);
        });
      });
    });
  }
};

// Takes one type of scheduler, whatever the parameters name.
template <typename Scheduler, TileEnvironment Environment>
struct OnlyScheduler {
  SWITCHYARD_NO_EXEC_CHECK
  template <typename Visit>
  SWITCHYARD_HD SWITCHYARD_FORCE_INLINE static void visit(const TileOrderParams& params, const Visit& visit) {
    with_summary(params, [&](const auto& summary) {
      visit(make_scheduler<Scheduler>(params.queue, params.shape, Environment{}), summary);
    });
  }
};

// Returns the grid of a kind of scheduler. It depends on neither the order nor the environment.
inline GridDim grid_of(TileSchedulerKind kind, uint32_t batch_size, uint32_t max_num_prompt_tiles,
                       const MHATileShape& shape) {
  GridDim grid;
  with_scheduler<MHASchedule::DEFAULT, OneThread>(kind, [&](auto type) {
    grid = decltype(type)::type::grid_dim(batch_size, max_num_prompt_tiles, shape);
  });
  return grid;
}

// A block's walk through its tiles, made by the producer's threads together. `Schedulers` has the scheduler.
template <typename Schedulers>
class TileWalk {
 public:
  SWITCHYARD_HD SWITCHYARD_FORCE_INLINE TileWalk(const TileOrderParams& params, uint32_t* mailboxes)
      : params_(params) {
    Schedulers::visit(params_, [&](const auto& scheduler, const auto& summary) {
      state_ = scheduler.initial_state(mailboxes, summary);
      if (state_.is_valid()) seq_info_ = scheduler.unsafe_seq_info(summary, state_);
    });
  }

  SWITCHYARD_HD SWITCHYARD_FORCE_INLINE bool is_valid() const { return state_.is_valid(); }
  SWITCHYARD_HD SWITCHYARD_FORCE_INLINE const SeqInfo& seq_info() const { return seq_info_; }
  // Goes to the first tile that exists, then to the next.
  SWITCHYARD_HD SWITCHYARD_FORCE_INLINE void find_next() {
    if (is_first_ && seq_info_.is_valid()) {
      is_first_ = false;
      return;
    }
    is_first_ = false;
    Schedulers::visit(params_, [&](const auto& scheduler, const auto& summary) {
      seq_info_ =
          *scheduler.template advance<true, MHASchedulerSynchronization::PRODUCER>(summary, state_, slot_);
    });
    slot_ ^= 1;
  }

 private:
  const TileOrderParams& params_;
  MHATileState state_;
  SeqInfo seq_info_;
  uint32_t slot_ = 0;
  bool is_first_ = true;
};

}  // namespace switchyard
