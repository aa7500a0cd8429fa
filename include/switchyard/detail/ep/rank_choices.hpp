// The kernels around a dispatch that sends a token once to each rank (RowLayout::kPerRank). The exchange
// itself knows no experts then: to it, ranks are the experts. choose_ranks, before it, turns each token's ids
// into ranks, each at the first choice that it owns, and keeps seats and weights. fetch_choices, behind it,
// finds which local experts each row is for: every rank reads what the row's sender has kept. The dispatch in
// between orders that: the sender's counts (MM-08) and its signal (MM-10) each publish what came before on
// its stream, and the dispatch in front of fetch_choices acquires both.
//
// There are two copies of what a rank keeps, which the steps take in turn, by their numbers, so that a graph
// that replays does the same. The dispatch in between has seen the counts of every rank (MM-08), which on
// that rank's stream come behind the fetch_choices that read the same copy.
#pragma once

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/rank_choices_params.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Where the copy of a step begins. All ranks count the same steps.
template <FixedShape Fixed>
SWITCHYARD_DEVICE uint64_t kept_copy(uint32_t step, uint64_t copy_stride) {
  return mutate<Fixed, LogicMutant::kChoicesKeptOnce>(step % 2 * copy_stride, uint64_t{0});
}

template <FixedShape Fixed>
struct ChooseRanks {
  const ChooseRanksParams& params;
  const ShapeOf<Fixed> shape{params.shape};
  const uint64_t copy =
      kept_copy<Fixed>(1 + static_cast<uint32_t>(target::ld(DirectCounters{params.ep_counters}.num_steps())),
                       params.copy_stride);

  // A lane has one choice; a warp has as many tokens as it has lanes for.
  SWITCHYARD_DEVICE void run() const {
    const bool is_healthy = sync_block_all(is_unpoisoned(params.wait_context));
    const int tokens_per_warp = kWarpSize / shape.top_k();
    const int token_of_warp = target::lane_idx() / shape.top_k();
    const int warp = target::block_idx() * target::num_warps() + target::warp_idx();
    const int num_warps = target::num_blocks() * target::num_warps();
    for (int first = warp * tokens_per_warp; first < params.num_tokens;
         first += num_warps * tokens_per_warp) {
      const bool has_choice = token_of_warp < tokens_per_warp && first + token_of_warp < params.num_tokens;
      choose(has_choice ? static_cast<int64_t>(first) * shape.top_k() + target::lane_idx() : -1,
             token_of_warp, is_healthy);
    }
  }

 private:
  // Called by a whole warp; id_idx is -1 in a lane without a choice. Behind a step that broke and was not
  // reset all is padding: the dispatch that follows must find ids, too. Peers may still read what that step
  // kept.
  SWITCHYARD_DEVICE void choose(int64_t id_idx, int token_of_warp, bool is_healthy) const {
    const int id = id_idx >= 0 && is_healthy ? target::ld(params.topk_ids + id_idx) : -1;
    if (kChecked && !shape.is_id(id))
      raise_fault(params.wait_context, FaultKind::kBadExpertId,
                  {Phase::kDispatchAsync, params.my_rank, -1, static_cast<uint64_t>(shape.num_ids())},
                  static_cast<uint64_t>(static_cast<int64_t>(id)), 0);
    const int seat = shape.expert_of_id(id);
    const int rank = seat >= 0 ? shape.owner_rank(seat) : -1;
    const uint32_t same = target::match_any(static_cast<uint32_t>(token_of_warp) << 16 |
                                            (static_cast<uint32_t>(rank) & 0xffffu));
    const bool is_first =
        mutate<Fixed, LogicMutant::kRanksNotDistinct>((same & ((1u << target::lane_idx()) - 1)) == 0, true);
    if (id_idx < 0) return;
    target::st(params.kept.rank_ids + id_idx, is_first ? rank : -1);
    target::st(params.kept.rank_weights + id_idx, 1.0f);
    if (!is_healthy) return;
    target::st(params.kept.seats + copy + id_idx, seat);
    target::st(params.kept.weights + copy + id_idx,
               seat >= 0 ? target::ld(params.topk_weights + id_idx) : 0.0f);
  }
};

template <FixedShape Fixed>
struct FetchChoices {
  const FetchChoicesParams& params;
  const DirectCounters counters{params.ep_counters};

  SWITCHYARD_DEVICE void run() const {
    if (is_poisoned(params.wait_context)) return;  // a step that broke may have left anything
    // A step that all ranks skip moved no row.
    if (target::ld(counters.is_skipped()) != 0) return;
    const uint32_t first_row = target::ld(params.first_row);
    uint32_t row = first_row;
    for (int src_rank = 0; src_rank < params.n_ranks; ++src_rank) {
      const uint32_t num_rows = StepCell::unpack(target::ld(params.step_cells + src_rank)).value;
      fetch(mutate<Fixed, LogicMutant::kChoicesOfRankZero>(src_rank, 0), row, num_rows);
      row += num_rows;
    }
    if (params.expert_totals != nullptr && target::block_idx() == 0 && target::thread_idx() == 0)
      target::atomic_add_relaxed_device(params.expert_totals, static_cast<int32_t>(row - first_row));
  }

 private:
  // A thread has one choice of a row at a time.
  SWITCHYARD_DEVICE void fetch(int src_rank, uint32_t first_row, uint32_t num_rows) const {
    const uint64_t top_k = static_cast<uint64_t>(params.top_k);
    // The dispatch in front has counted its step.
    const uint64_t copy =
        kept_copy<Fixed>(static_cast<uint32_t>(target::ld(counters.num_steps())), params.copy_stride);
    const uint64_t num_threads = static_cast<uint64_t>(target::num_blocks()) * target::num_threads();
    for (uint64_t i =
             static_cast<uint64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
         i < num_rows * top_k; i += num_threads) {
      const uint64_t row = first_row + i / top_k, k = i % top_k;
      const uint64_t token_idx = static_cast<uint64_t>(target::ld(params.src_info + 2 * row));
      const uint64_t choice_idx = copy + token_idx * top_k + k;
      const int local =
          target::ld(params.seats.of_rank[src_rank] + choice_idx) - params.my_rank * params.n_local_experts;
      const bool is_local = mutate<Fixed, LogicMutant::kChoicesOfOtherRanks>(
          local >= 0 && local < params.n_local_experts, local >= 0);
      if (params.row_experts != nullptr)
        target::st(params.row_experts + row * top_k + k, is_local ? local : -1);
      if (params.row_weights != nullptr)
        target::st(params.row_weights + row * top_k + k,
                   is_local ? target::ld(params.weights.of_rank[src_rank] + choice_idx) : 0.0f);
      if (params.expert_totals != nullptr && is_local)
        target::atomic_add_relaxed_device(params.expert_totals + 1 + local, 1);
    }
  }
};

template <FixedShape Fixed>
SWITCHYARD_KERNEL void choose_ranks_kernel(ChooseRanksParams params) {
  begin_kernel<Fixed>();
  ChooseRanks<Fixed>{params}.run();
}

template <FixedShape Fixed>
SWITCHYARD_KERNEL void fetch_choices_kernel(FetchChoicesParams params) {
  begin_kernel<Fixed>();
  FetchChoices<Fixed>{params}.run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
