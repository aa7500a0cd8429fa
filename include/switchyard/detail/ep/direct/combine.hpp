// combine, direct protocol: combine_async publishes where this rank's expert output lies; combine_wait pulls
// each token's rows from their owners and sums them up in one pass.
#pragma once

#include <type_traits>

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/pushed_rows.hpp"
#include "switchyard/detail/ep/direct/step_signal.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/ep/row_sum.hpp"
#include "switchyard/detail/ep/token_outputs.hpp"
#include "switchyard/detail/ep/token_sources.hpp"
#include "switchyard/detail/sync/rank_waits.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// All ranks have skipped the step's dispatch, and know it: there is nothing to signal or to wait for.
template <FixedShape Fixed>
SWITCHYARD_DEVICE bool was_skipped(const DirectCounters& counters) {
  return mutate<Fixed, LogicMutant::kSkippedStepCombined>(target::ld(counters.is_skipped()) != 0, false);
}

template <FixedShape Fixed>
SWITCHYARD_DEVICE OutputCellLayout output_cells(const ShapeOf<Fixed>& shape) {
  return {shape.n_ranks(), shape.n_experts()};
}

// What far ranks put to this one: rows in the format of the combine.
template <FixedShape Fixed, typename Rows>
SWITCHYARD_DEVICE CombineRecvLayout far_recv_layout(const ShapeOf<Fixed>& shape) {
  return {shape.max_tokens_per_rank(), shape.top_k(), Rows::row_bytes(shape.hidden())};
}

template <FixedShape Fixed, typename Epilogue, typename Rows>
struct DirectCombineAsync {
  using Params = CombineParams<DirectCombinePart, Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.ep_counters};

  SWITCHYARD_DEVICE explicit DirectCombineAsync(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (!kHasWire<Fixed> && target::block_idx() != 0) return;
    // All loads are issued before any value is used, so they are in flight together.
    const bool is_broken = find_poison();
    const bool is_skipped = was_skipped<Fixed>(counters);
    const uint32_t step = static_cast<uint32_t>(target::ld(counters.num_steps()));
    if (is_broken | is_skipped) return;  // a broken step left nothing to publish
    if constexpr (kHasWire<Fixed>)
      if (!PushedRows<Fixed, Params>{params, shape, far_recv_layout<Fixed, Rows>(shape)}.put()) return;
    const uint64_t offset =
        static_cast<uint64_t>(static_cast<const std::byte*>(params.expert_rows) - params.recv_bufs.mine);
    const uint32_t location = static_cast<uint32_t>(offset / OutputCellLayout::kUnit);
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads()) {
      const bool is_lent = lend(rank);
      // release MM-11: lets the rank read this rank's expert output; pairs with the acquire in its
      // combine_wait
      publish<Fixed>(
          params, params.recv_counts, rank, [&](uint64_t* cells) { return cells + params.my_rank; },
          StepCell{step, is_lent ? OutputCellLayout::kElsewhere : location}.pack());
    }
  }

  // Tells the rank where it finds rows of the caller's memory, if they are to be read there.
  SWITCHYARD_DEVICE bool lend(int rank) const {
    if constexpr (kHasWire<Fixed>) {
      return false;
    } else {
      const std::byte* rows = params.lent_rows[rank];
      if (rows == nullptr) return false;
      target::st(output_cells(shape).address(params.recv_counts.of_rank[rank], params.my_rank),
                 static_cast<uint64_t>(reinterpret_cast<uintptr_t>(rows)));
      return true;
    }
  }

  // Poison may come at any time. All threads of a block put rows, or none does; without a wire each thread
  // has signals of its own.
  SWITCHYARD_DEVICE bool find_poison() const {
    if constexpr (kHasWire<Fixed>) return !sync_block_all(is_unpoisoned(params.wait_context));
    return is_poisoned(params.wait_context);
  }
};

template <bool kWired>
struct DirectCombineShared {
  const std::byte* output_of_rank[kWired ? kMaxRanks : kMaxDirectRanks];  // null: the rank is far
  TokenSources sources;
  // Behind it: the stages of a RowSum.

  template <typename Rows>
  SWITCHYARD_HD static constexpr uint64_t bytes(int num_warps) {
    const uint64_t wait_bytes =
        sizeof(DirectCombineShared) + static_cast<uint64_t>(num_warps) * RowSum<Rows>::kBytesPerWarp;
    return kWired && wait_bytes < sizeof(PushedRowsShared) ? sizeof(PushedRowsShared) : wait_bytes;
  }
};
static_assert(sizeof(DirectCombineShared<false>) % kRowSumAlignment == 0);
static_assert(sizeof(DirectCombineShared<true>) % kRowSumAlignment == 0);

template <FixedShape Fixed, typename Epilogue, typename Rows>
struct DirectCombineWait {
  using Params = CombineParams<DirectCombinePart, Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.ep_counters};
  DirectCombineShared<kHasWire<Fixed>>& shared =
      target::shared_storage<DirectCombineShared<kHasWire<Fixed>>>();
  const uint32_t row_bytes = Rows::row_bytes(shape.hidden());

  SWITCHYARD_DEVICE explicit DirectCombineWait(const Params& params_in) : params(params_in) {}

  // What this rank has kept of a choice of one of its tokens: no peer has to come for it.
  struct Choice {
    int expert_idx;    // -1: none
    uint32_t row_idx;  // on the expert's owner
    float weight;
  };
  const int first_token = first_row_of_warp(static_cast<uint32_t>(params.num_tokens));
  Choice first_choice;  // of this lane, of the warp's first token

  SWITCHYARD_DEVICE void run() {
    const bool is_skipped = was_skipped<Fixed>(counters);
    const uint32_t step = static_cast<uint32_t>(target::ld(counters.num_steps()));
    const bool is_healthy = is_unpoisoned<Fixed, LogicMutant::kCombineWaitIgnoresPoison>(params.wait_context);
    if constexpr (!std::is_same_v<Epilogue, StoreUnreduced>)
      first_choice = choice_of_lane(first_token);  // in flight while the experts' signals come
    if (is_skipped) return;
    if (!find_outputs(step, is_healthy)) return;  // a fault: the host resets everything
    const bool has_readers = awaits_readers();
    if constexpr (!kAwaitsExperts<Fixed>)
      if (!has_readers) admit_successor();  // who has let the next launch in must not wait for a peer
    make_token_outputs<Epilogue, Rows>(*this, reinterpret_cast<std::byte*>(&shared + 1));
    if constexpr (!kHasWire<Fixed>)
      if (has_readers) await_readers(step);
  }

  SWITCHYARD_DEVICE bool awaits_readers() const {
    if constexpr (kHasWire<Fixed>) return false;
    return params.awaits_readers;
  }

  // The last block tells the owners of the rows that they have been read, and waits for those who read this
  // rank's.
  SWITCHYARD_DEVICE void await_readers(uint32_t step) const {
    target::sync_block();
    // acq_rel MM-35: collects the reads of all blocks before the last one signals; pairs with itself in the
    // other blocks
    const bool is_last = target::thread_idx() == 0 &&
                         target::atomic_add_acq_rel_device(counters.blocks_read(), 1) ==
                             mutate<Fixed, LogicMutant::kFirstBlockHasRead>(target::num_blocks() - 1, 0);
    if (!target::sync_block_any(is_last)) return;
    const OutputCellLayout cells = output_cells(shape);
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads())
      // release MM-36: this rank has read the rank's expert output; pairs with the acquire below, over there
      publish<Fixed>(
          params, params.recv_counts, rank,
          [&](uint64_t* of_rank) { return cells.reader(of_rank, params.my_rank); }, StepCell{step, 0}.pack());
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads()) {
      StepCell none{};
      // acquire MM-36: the rank has read this rank's expert output; pairs with the release above, over there
      (void)mutate<Fixed, LogicMutant::kReadersNotAwaited>(
          [&] {
            return AwaitedStep<StepCell>{params.wait_context, cells.reader(params.recv_counts.mine, rank)}
                .wait_until(step, Phase::kCombineWait, rank, -1, none);
          },
          [] { return true; });
    }
    if (target::thread_idx() == 0) target::st_relaxed_device(counters.blocks_read(), 0);
  }

  // Waits until every rank's expert output is complete, or, in front of await_experts(), until it is known
  // where it will be.
  SWITCHYARD_DEVICE bool find_outputs(uint32_t step, bool is_healthy) {
    const TraceSlice slice(params.wait_context.trace, Phase::kCombineWait, TraceName::kFindOutputs);
    const auto signal_of = [&](int rank) {
      return AwaitedStep<StepCell>{params.wait_context, params.recv_counts.mine + rank};
    };
    const uint64_t since_ns = time_ranks(params, Phase::kCombineWait, shape.n_ranks(), target::num_threads(),
                                         [&](int rank) { return signal_of(rank).has_come(step); });
    bool arrived = is_healthy;
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads()) {
      const AwaitedStep<StepCell> signal = signal_of(rank);
      StepCell location{};
      arrived &= mutate<Fixed, LogicMutant::kOutputNotAwaited>(
          [&] {
            // acquire MM-11: the rank's expert output; pairs with the release in its combine_async
            return signal.wait_until(step, Phase::kCombineWait, rank, -1, location, since_ns);
          },
          [&] {
            signal.take(location);
            return true;
          });
      shared.output_of_rank[rank] = arrived ? output_at(rank, location.value) : nullptr;
    }
    return sync_block_all(arrived);
  }

  SWITCHYARD_DEVICE const std::byte* output_at(int rank, uint32_t location) const {
    const std::byte* memory = peer_pointer<Fixed>(params, params.recv_bufs, rank);
    if constexpr (kHasWire<Fixed>) {
      if (memory == nullptr) return nullptr;
    } else if (location == OutputCellLayout::kElsewhere) {
      return reinterpret_cast<const std::byte*>(
          static_cast<uintptr_t>(target::ld(output_cells(shape).address(params.recv_counts.mine, rank))));
    }
    return memory + uint64_t{location} * OutputCellLayout::kUnit;
  }

  SWITCHYARD_DEVICE int expert_of(int64_t id_idx) const {
    const int expert_idx = shape.expert_of_id(params.topk_ids[id_idx]);
    return mutate<Fixed, LogicMutant::kPaddingPulled>(expert_idx, expert_idx < 0 ? 0 : expert_idx);
  }
  SWITCHYARD_DEVICE const std::byte* row_of(int64_t id_idx, int expert_idx, uint32_t row_idx) const {
    const int owner = mutate<Fixed, LogicMutant::kCombineIgnoresSeats>(shape.owner_rank(expert_idx), [&] {
      return shape.owner_rank(params.topk_ids[id_idx] % shape.n_experts());
    });
    const std::byte* output = shared.output_of_rank[owner];
    if (kHasWire<Fixed> && output == nullptr)  // the owner has put the row here
      return params.wire.recv_buf + static_cast<uint64_t>(id_idx) * row_bytes;
    return output + static_cast<uint64_t>(row_idx) * row_bytes;
  }

  SWITCHYARD_DEVICE void store_unreduced(int token_idx, int worker_idx, int num_workers) {
    for (int k = 0; k < shape.top_k(); ++k) {
      const int64_t id_idx = static_cast<int64_t>(token_idx) * shape.top_k() + k;
      const int expert_idx = expert_of(id_idx);
      bf16* output = params.epilogue.output + id_idx * params.epilogue.stride;
      const std::byte* row =
          expert_idx >= 0 ? row_of(id_idx, expert_idx, target::ld(&params.row_of[id_idx])) : nullptr;
      for (int column = worker_idx * Rows::kColumns; column < shape.hidden();
           column += num_workers * Rows::kColumns)
        Rows::store(row, shape.hidden(), column, output);
    }
  }

  SWITCHYARD_DEVICE void reduce(RowSum<Rows>& row_sum, int token_idx, int worker_idx, int num_workers) {
    if constexpr (kAwaitsExperts<Fixed>)
      if (!await_experts(token_idx)) return;
    const int num_sources = shared.sources.gather(source_of_lane(token_idx), shared_expert_of(token_idx));
    row_sum.run(
        {shared.sources.of_warp[target::warp_idx()], num_sources, shape.hidden()}, worker_idx, num_workers,
        [&](int column, const float(&sums)[kColumnsPerThread]) { params.epilogue(token_idx, column, sums); });
  }

  // Called by a whole warp. Waits for the outputs of the experts that the token has rows of, each lane for
  // one. gather() then passes them on to the other lanes.
  SWITCHYARD_DEVICE bool await_experts(int token_idx) const {
    const uint32_t step = static_cast<uint32_t>(target::ld(counters.num_steps()));
    const auto is_complete = [&](const uint64_t* cell, int rank, int expert_idx) {
      StepCell none{};
      // acquire MM-34: the expert's outputs; pairs with the release in complete_part()
      return AwaitedStep<StepCell>{params.wait_context, cell}.wait_until(step, Phase::kCombineWait, rank,
                                                                         expert_idx, none);
    };
    const OutputCellLayout cells = output_cells(shape);
    const int expert_idx = (token_idx == first_token ? first_choice : choice_of_lane(token_idx)).expert_idx;
    bool arrived = true;
    if (expert_idx >= 0)
      arrived = is_complete(cells.expert(params.recv_counts.mine, expert_idx), shape.owner_rank(expert_idx),
                            expert_idx);
    if (target::lane_idx() == 0 && params.shared_expert.row_of(token_idx) >= 0)
      arrived &= is_complete(cells.shared_expert(params.recv_counts.mine), params.my_rank, -1);
    return target::ballot(!arrived) == 0;
  }

  // Choice `lane_idx` of the token; all loads are in flight at once.
  SWITCHYARD_DEVICE Choice choice_of_lane(int token_idx) const {
    if (token_idx >= params.num_tokens || target::lane_idx() >= shape.top_k()) return {-1, 0, 0.0f};
    const int64_t id_idx = id_of_lane(token_idx);
    const uint32_t row_idx = target::ld(&params.row_of[id_idx]);
    const float weight = params.topk_weights[id_idx];
    return {expert_of(id_idx), row_idx, weight};
  }
  SWITCHYARD_DEVICE int64_t id_of_lane(int token_idx) const {
    return static_cast<int64_t>(token_idx) * shape.top_k() + target::lane_idx();
  }

  SWITCHYARD_DEVICE TokenSource source_of_lane(int token_idx) const {
    const Choice choice = token_idx == first_token ? first_choice : choice_of_lane(token_idx);
    if constexpr (kLinksRows<Fixed>) return reduced_source(id_of_lane(token_idx), choice);
    if (choice.expert_idx < 0) return {};
    return {row_of(id_of_lane(token_idx), choice.expert_idx, choice.row_idx), choice.weight};
  }
  // Siblings on another rank have been summed up, weighted, in the first of them. Others are as they were:
  // rows without siblings, and those on this rank.
  SWITCHYARD_DEVICE TokenSource reduced_source(int64_t id_idx, const Choice& choice) const {
    const int owner = choice.expert_idx >= 0 ? shape.owner_rank(choice.expert_idx) : -1;
    const uint32_t siblings = target::match_any(static_cast<uint32_t>(owner));
    const bool is_first = mutate<Fixed, LogicMutant::kSiblingsAddedAgain>(
        (siblings & ((1u << target::lane_idx()) - 1)) == 0, true);
    const bool is_own = mutate<Fixed, LogicMutant::kOwnSiblingsLeftOut>(owner == params.my_rank, false);
    if (owner < 0 || !(is_first || is_own)) return {};
    const bool is_sum =
        mutate<Fixed, LogicMutant::kSumWeightedAgain>(!is_own && target::popcount(siblings) > 1, false);
    return {row_of(id_idx, choice.expert_idx, choice.row_idx), is_sum ? 1.0f : choice.weight};
  }
  SWITCHYARD_DEVICE TokenSource shared_expert_of(int token_idx) const {
    const int row = params.shared_expert.row_of(token_idx);
    if (row < 0) return {};
    return {shared.output_of_rank[params.my_rank] + static_cast<uint64_t>(row) * row_bytes, 1.0f};
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
