// A scheduler chosen at the call. Only the planner asks it, so it costs a switch per tile and no kernel of
// its own.
#pragma once

#include "switchyard/detail/attention/config.hpp"
#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/attention/tile_environment.hpp"
#include "switchyard/detail/schedule/schedulers.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

class AnyScheduler {
 public:
  // Who asks the queue is its producer: the planner's warp.
  using Environment = BlockEnvironment<ProducerThreads{.first_producer_thread = kPlannerWarp * kWarpSize}>;

  SWITCHYARD_DEVICE AnyScheduler(const TileOrderParams& params, uint32_t* slots) : params_(params) {
    with_scheduler([&](const auto& scheduler, const auto& summary) {
      state_ = scheduler.initial_state(slots, summary);
      if (state_.is_valid()) seq_info_ = scheduler.unsafe_seq_info(summary, state_);
    });
  }

  SWITCHYARD_DEVICE bool is_valid() const { return state_.is_valid(); }
  SWITCHYARD_DEVICE const SeqInfo& seq_info() const { return seq_info_; }
  // By all lanes of the planner's warp: goes to the first tile that is there, then to the next.
  SWITCHYARD_DEVICE void find_next() {
    if (is_first_ && seq_info_.is_valid()) {
      is_first_ = false;
      return;
    }
    is_first_ = false;
    with_scheduler([&](const auto& scheduler, const auto& summary) {
      seq_info_ =
          *scheduler.template advance<true, MHASchedulerSynchronization::PRODUCER>(summary, state_, slot_);
    });
    slot_ ^= 1;
  }

 private:
  template <typename Visit>
  SWITCHYARD_DEVICE void with_scheduler(Visit visit) {
    switch (params_.order) {
      case MHASchedule::DEFAULT:
        return with_order<MHASchedule::DEFAULT>(visit);
      case MHASchedule::PROMPT_ROTATE:
        return with_order<MHASchedule::PROMPT_ROTATE>(visit);
      case MHASchedule::LPT:
        return with_order<MHASchedule::LPT>(visit);
    }
  }
  template <MHASchedule kOrder, typename Visit>
  SWITCHYARD_DEVICE void with_order(Visit visit) {
    if (params_.row_offsets == nullptr)
      with_lengths<kOrder>(MHATileSummary<CommonLength>{params_.batch_size,
                                                        params_.max_num_prompt_tiles,
                                                        {},
                                                        params_.max_seq_len,
                                                        params_.plan,
                                                        params_.max_num_keys},
                           visit);
    else
      with_lengths<kOrder>(MHATileSummary<RowOffsets>{params_.batch_size,
                                                      params_.max_num_prompt_tiles,
                                                      {params_.row_offsets},
                                                      params_.max_seq_len,
                                                      params_.plan,
                                                      params_.max_num_keys},
                           visit);
  }
  template <MHASchedule kOrder, typename Summary, typename Visit>
  SWITCHYARD_DEVICE void with_lengths(const Summary& summary, Visit visit) {
    switch (params_.kind) {
      case TileSchedulerKind::kTransient:
        return visit(TransientScheduler<kOrder, Environment>(params_.shape), summary);
      case TileSchedulerKind::kTile:
        return visit(TileScheduler<kOrder, Environment>(params_.shape), summary);
      case TileSchedulerKind::kQueued:
        return visit(QueuedTileScheduler<kOrder, Environment>(params_.queue, params_.shape), summary);
    }
  }

  const TileOrderParams& params_;
  MHATileState state_;
  SeqInfo seq_info_;
  uint32_t slot_ = 0;
  bool is_first_ = true;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
