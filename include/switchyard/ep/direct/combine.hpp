// combine, direct protocol: combine_async says where this rank's expert output lies; combine_wait pulls each
// token's rows from their owners and sums them up in one pass.
#pragma once

#include <type_traits>

#include "switchyard/ep/combine_rows.hpp"
#include "switchyard/ep/direct/wait_for_step.hpp"
#include "switchyard/ep/mutant.hpp"
#include "switchyard/ep/pair_table.hpp"
#include "switchyard/ep/params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// All ranks have skipped the step's dispatch, and know it: there is nothing to signal, nor to wait for.
template <FixedShape Fixed>
SWITCHYARD_DEVICE bool was_skipped(const DirectCounters& counters) {
  return target::ld(counters.is_skipped()) != 0 && !is_mutant<Fixed>(LogicMutant::kSkippedStepCombined);
}

template <FixedShape Fixed, typename Epilogue>
struct DirectCombineAsync {
  using Params = CombineParams<Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.counters};

  SWITCHYARD_DEVICE explicit DirectCombineAsync(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (target::block_idx() != 0) return;
    // Loads first, looks second: they are under way together.
    const bool is_broken = is_poisoned(params.fault);
    const bool is_skipped = was_skipped<Fixed>(counters);
    const uint32_t step = static_cast<uint32_t>(target::ld(counters.num_steps()));
    if (is_broken | is_skipped) return;  // a broken step left nothing to show
    const uint64_t offset = static_cast<uint64_t>(static_cast<const std::byte*>(params.expert_rows) -
                                                  params.recv_bufs.of_rank[params.my_rank]);
    const uint32_t place = static_cast<uint32_t>(offset / OutputCellLayout::kUnit);
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads())
      // release: lets the rank read this rank's expert output; pairs with the acquire in its combine_wait
      target::st_release(params.signal_scope, params.recv_counts.of_rank[rank] + params.my_rank,
                         StepCell{step, place}.pack());
  }
};

struct DirectCombineShared {
  // A row to add, of the token a warp works on.
  struct Source {
    const std::byte* row;
    float weight;
  };
  static constexpr int kMaxWarps = 1024 / kWarpSize;

  const std::byte* output_of_rank[kMaxRanks];
  Source sources[kMaxWarps][kMaxTopK + 1];  // and the shared expert's
};

// What the rows of a warp count for. bf16: their weights.
template <typename Rows>
struct FactorsOf {
  const DirectCombineShared::Source* sources;

  template <int kNumRows>
  SWITCHYARD_DEVICE static FactorsOf load(const DirectCombineShared::Source* sources, int, int) {
    return {sources};
  }
  SWITCHYARD_DEVICE float of(int i) const { return sources[i].weight; }
};
// fp8: and the scales of their groups. A lane has that of one row and one of the groups the warp works on.
template <>
struct FactorsOf<FP8CombineRows> {
  static constexpr int kLanesPerGroup = FP8CombineRows::kGroupSize / FP8CombineRows::kColumns;
  static constexpr int kGroups = kWarpSize / kLanesPerGroup;

  float of_lane;

  template <int kNumRows>
  SWITCHYARD_DEVICE static FactorsOf load(const DirectCombineShared::Source* sources, int hidden,
                                          int column) {
    static_assert(kNumRows * kGroups <= kWarpSize);
    const int lane_idx = target::lane_idx(), i = lane_idx / kGroups;
    const int group_idx =
        (column - lane_idx * FP8CombineRows::kColumns) / FP8CombineRows::kGroupSize + lane_idx % kGroups;
    if (i >= kNumRows || group_idx >= hidden / FP8CombineRows::kGroupSize) return {0.0f};
    return {FP8CombineRows::load_factor(sources[i].row, hidden, group_idx, sources[i].weight)};
  }
  SWITCHYARD_DEVICE float of(int i) const {
    return target::shuffle(of_lane, i * kGroups + target::lane_idx() / kLanesPerGroup);
  }
};

template <FixedShape Fixed, typename Epilogue, typename Rows>
struct DirectCombineWait {
  using Params = CombineParams<Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.counters};
  DirectCombineShared& shared = target::shared_storage<DirectCombineShared>();
  const uint32_t row_bytes = Rows::row_bytes(shape.hidden());

  SWITCHYARD_DEVICE explicit DirectCombineWait(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    const bool is_skipped = was_skipped<Fixed>(counters);
    const uint32_t step = static_cast<uint32_t>(target::ld(counters.num_steps()));
    const bool is_well = finds_no_poison(params.fault);
    if (is_skipped) return;
    if (!find_outputs(step, is_well)) return;  // a fault: the host resets everything
    const TraceSlice slice(params.fault.trace, Phase::kCombineWait, TraceName::kReduce);
    for_each_row(static_cast<uint32_t>(params.num_tokens),
                 [&](uint32_t token_idx, int worker_idx, int num_workers) {
                   if constexpr (std::is_same_v<Epilogue, StoreUnreduced>)
                     store_unreduced(static_cast<int>(token_idx), worker_idx, num_workers);
                   else
                     reduce(static_cast<int>(token_idx), worker_idx, num_workers);
                 });
  }

  // Waits until every rank's expert output is there.
  SWITCHYARD_DEVICE bool find_outputs(uint32_t step, bool is_well) {
    const TraceSlice slice(params.fault.trace, Phase::kCombineWait, TraceName::kFindOutputs);
    bool arrived = is_well;
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads()) {
      StepCell place{};
      const uint64_t* cell = params.recv_counts.of_rank[params.my_rank] + rank;
      if (is_mutant<Fixed>(LogicMutant::kOutputNotAwaited))
        place = StepCell::unpack(target::ld_acquire_system(cell));
      else
        // acquire: the rank's expert output; pairs with the release in its combine_async
        arrived &= wait_for_step(params.fault, Phase::kCombineWait, rank, -1, step, cell, place);
      shared.output_of_rank[rank] =
          params.recv_bufs.of_rank[rank] + uint64_t{place.value} * OutputCellLayout::kUnit;
    }
    return sync_block_all_well(arrived);
  }

  SWITCHYARD_DEVICE int expert_of(int64_t id_idx) const {
    const int id = params.topk_ids[id_idx];
    if (id == -1 && is_mutant<Fixed>(LogicMutant::kPaddingPulled)) return 0;
    return shape.expert_of_id(id);
  }
  SWITCHYARD_DEVICE const std::byte* row_of(int64_t id_idx, int expert_idx) const {
    return shared.output_of_rank[shape.owner_rank(expert_idx)] +
           static_cast<uint64_t>(target::ld(&params.row_of[id_idx])) * row_bytes;
  }

  SWITCHYARD_DEVICE void store_unreduced(int token_idx, int worker_idx, int num_workers) {
    for (int k = 0; k < shape.top_k(); ++k) {
      const int64_t id_idx = static_cast<int64_t>(token_idx) * shape.top_k() + k;
      const int expert_idx = expert_of(id_idx);
      bf16* output = params.epilogue.output + id_idx * shape.hidden();
      const std::byte* row = expert_idx >= 0 ? row_of(id_idx, expert_idx) : nullptr;
      for (int column = worker_idx * Rows::kColumns; column < shape.hidden();
           column += num_workers * Rows::kColumns)
        Rows::store(row, shape.hidden(), column, output);
    }
  }

  // What reduce_rows() is to know of a token: its rows, in the order of k, without padding. A warp works on
  // neighbouring columns; lanes past the end read the last ones.
  struct TokenRows {
    static constexpr int kFirstInFlight = 8;

    const DirectCombineShared::Source* sources;
    int num_sources;
    int hidden;

    SWITCHYARD_DEVICE int num_rows() const { return num_sources; }
    SWITCHYARD_DEVICE bool is_there(int) const { return true; }
    SWITCHYARD_DEVICE bool has_column(int column) const { return column < hidden; }
    SWITCHYARD_DEVICE typename Rows::Chunk load(int i, int column) const {
      return Rows::load(sources[i].row, has_column(column) ? column : hidden - Rows::kColumns);
    }
    template <int kNumRows>
    SWITCHYARD_DEVICE auto factors(int first, int column) const {
      return FactorsOf<Rows>::template load<kNumRows>(sources + first, hidden, column);
    }
    SWITCHYARD_DEVICE void add_last(float (&)[kColumnsPerThread], int) const {}
  };

  SWITCHYARD_DEVICE void reduce(int token_idx, int worker_idx, int num_workers) {
    const int num_sources = gather_sources(token_idx);
    const TokenRows rows{shared.sources[target::warp_idx()], num_sources, shape.hidden()};
    for (int warp_column = (worker_idx - target::lane_idx()) * Rows::kColumns; warp_column < shape.hidden();
         warp_column += num_workers * Rows::kColumns)
      reduce_rows<Rows>(params.epilogue, rows, token_idx, warp_column + target::lane_idx() * Rows::kColumns);
  }

  // Puts the token's rows where all lanes of the warp find them, without its padding; says how many.
  SWITCHYARD_DEVICE int gather_sources(int token_idx) {
    const int k = target::lane_idx();
    const int64_t id_idx = static_cast<int64_t>(token_idx) * shape.top_k() + k;
    const int expert_idx = k < shape.top_k() ? expert_of(id_idx) : -1;
    const uint32_t present = target::ballot(expert_idx >= 0);
    target::sync_warp();  // the last token's are no longer needed
    if (expert_idx >= 0)
      shared.sources[target::warp_idx()][target::popcount(present & ((1u << k) - 1))] = {
          row_of(id_idx, expert_idx), params.topk_weights[id_idx]};
    const int shared_row = params.shared_expert.row_of(token_idx);
    if (shared_row >= 0 && k == 0)
      shared.sources[target::warp_idx()][target::popcount(present)] = {
          shared.output_of_rank[params.my_rank] + static_cast<uint64_t>(shared_row) * row_bytes, 1.0f};
    target::sync_warp();
    return target::popcount(present) + (shared_row >= 0 ? 1 : 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
