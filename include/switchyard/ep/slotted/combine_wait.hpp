// combine_wait: every block waits for the rows of all experts; then each token's rows become its output.
#pragma once

#include <type_traits>

#include "switchyard/ep/combine_rows.hpp"
#include "switchyard/ep/mutant.hpp"
#include "switchyard/ep/params.hpp"
#include "switchyard/sync/wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Epilogue, typename Rows>
struct CombineWait {
  using Params = CombineParams<Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  SyncCounters counters{params.counters, {shape.n_experts()}};
  CombineRecvLayout recv_layout{shape.max_tokens_per_rank(), shape.top_k(), Rows::row_bytes(shape.hidden())};

  SWITCHYARD_DEVICE explicit CombineWait(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (!collect_rows()) return;  // a fault: the host resets all counters
    if (target::warp_idx() == 0) reset_cells();
    const TraceSlice slice(params.fault.trace, Phase::kCombineWait, TraceName::kReduce);
    if constexpr (std::is_same_v<Epilogue, StoreUnreduced>)
      for_each_chunk(shape.top_k(),
                     [&](int token_idx, int k, int column) { store_unreduced(token_idx, k, column); });
    else
      for_each_chunk(1, [&](int token_idx, int, int column) { reduce(token_idx, column); });
  }

  // Waits until every expert has sent its rows.
  SWITCHYARD_DEVICE bool collect_rows() {
    const TraceSlice slice(params.fault.trace, Phase::kCombineWait, TraceName::kCollectRows);
    bool arrived = finds_no_poison(params.fault);
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      uint64_t seen = kNothingArrived;
      // acquire: the expert's rows; pairs with the release in its owner's signal()
      arrived &= wait_for(
          params.fault, {Phase::kCombineWait, shape.owner_rank(expert_idx), expert_idx, 0}, seen,
          [&] { return target::ld_acquire_system(my_cell(expert_idx)); },
          [](uint64_t cell) { return cell != kNothingArrived; });
    }
    return sync_block_all_well(arrived);
  }

  SWITCHYARD_DEVICE uint64_t* my_cell(int expert_idx) const {
    return params.recv_counts.of_rank[params.my_rank] + expert_idx;
  }

  // The last block to have read the cells puts them back for the next step. By one warp, while the others
  // reduce.
  SWITCHYARD_DEVICE void reset_cells() {
    int32_t num_before = 0;
    // acq_rel: every block's reads of the cells come before the last block's resets; pairs with itself
    if (target::lane_idx() == 0)
      num_before = target::atomic_add_acq_rel_device(counters.combine_blocks_left(), 1);
    if (target::shuffle(num_before, 0) != target::num_blocks() - 1 &&
        !is_mutant<Fixed>(LogicMutant::kCombineCellsResetTooEarly))
      return;
    for (int expert_idx = target::lane_idx(); expert_idx < shape.n_experts(); expert_idx += kWarpSize)
      target::st_relaxed_system(my_cell(expert_idx), kNothingArrived);
    if (target::lane_idx() == 0) target::st_relaxed_device(counters.combine_blocks_left(), 0);
  }

  // Deals (token, k, a thread's columns) to all threads of the launch.
  template <typename Work>
  SWITCHYARD_DEVICE void for_each_chunk(int rows_per_token, Work work) {
    const int chunks_per_row = shape.hidden() / Rows::kColumns;
    const int64_t num_chunks = static_cast<int64_t>(params.num_tokens) * rows_per_token * chunks_per_row;
    const int64_t num_threads = static_cast<int64_t>(target::num_threads()) * target::num_blocks();
    for (int64_t chunk =
             static_cast<int64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
         chunk < num_chunks; chunk += num_threads) {
      const int64_t row = chunk / chunks_per_row;
      work(static_cast<int>(row / rows_per_token), static_cast<int>(row % rows_per_token),
           static_cast<int>(chunk % chunks_per_row) * Rows::kColumns);
    }
  }

  SWITCHYARD_DEVICE bool is_padding(int token_idx, int k) const {
    return shape.expert_of_id(params.topk_ids[static_cast<int64_t>(token_idx) * shape.top_k() + k]) < 0 &&
           !is_mutant<Fixed>(LogicMutant::kPaddingCombined);
  }
  SWITCHYARD_DEVICE float weight_of(int token_idx, int k) const {
    if (is_mutant<Fixed>(LogicMutant::kWeightsReversed)) k = shape.top_k() - 1 - k;
    return params.topk_weights[static_cast<int64_t>(token_idx) * shape.top_k() + k];
  }
  SWITCHYARD_DEVICE const std::byte* received(int token_idx, int k) const {
    return recv_layout.row(params.recv_bufs.of_rank[params.my_rank], token_idx, k);
  }

  SWITCHYARD_DEVICE void store_unreduced(int token_idx, int k, int column) {
    const int64_t row = static_cast<int64_t>(token_idx) * shape.top_k() + k;
    Rows::store(is_padding(token_idx, k) ? nullptr : received(token_idx, k), shape.hidden(), column,
                params.epilogue.output + row * shape.hidden());
  }

  // What reduce_rows() is to know of a token: its rows, in the order of k.
  struct TokenRows {
    static constexpr int kFirstInFlight = 64 / Rows::kColumns;  // what there are registers for

    const CombineWait& combine;
    int token_idx;

    SWITCHYARD_DEVICE int num_rows() const { return combine.shape.top_k(); }
    SWITCHYARD_DEVICE bool is_there(int k) const { return !combine.is_padding(token_idx, k); }
    SWITCHYARD_DEVICE bool has_column(int) const { return true; }
    SWITCHYARD_DEVICE typename Rows::Chunk load(int k, int column) const {
      return Rows::load(combine.received(token_idx, k), column);
    }
    template <int kNumRows>
    struct Factors {
      float factors[kNumRows];

      SWITCHYARD_DEVICE float of(int i) const { return factors[i]; }
    };
    template <int kNumRows>
    SWITCHYARD_DEVICE Factors<kNumRows> factors(int first, int column) const {
      Factors<kNumRows> result;
      SWITCHYARD_UNROLL
      for (int i = 0; i < kNumRows; ++i)
        result.factors[i] =
            Rows::load_factor(combine.received(token_idx, first + i), combine.shape.hidden(),
                              column / FP8CombineRows::kGroupSize, combine.weight_of(token_idx, first + i));
      return result;
    }
    // The shared expert: its rows are this rank's own, and bf16.
    SWITCHYARD_DEVICE void add_last(float (&sums)[kColumnsPerThread], int column) const {
      const int row = combine.params.shared_expert.row_of(token_idx);
      if (row < 0) return;
      accumulate(sums,
                 target::ld_16(static_cast<const bf16*>(combine.params.expert_rows) +
                               static_cast<int64_t>(row) * combine.shape.hidden() + column),
                 1.0f);
    }
  };

  SWITCHYARD_DEVICE void reduce(int token_idx, int column) const {
    reduce_rows<Rows>(params.epilogue, TokenRows{*this, token_idx}, token_idx, column);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
