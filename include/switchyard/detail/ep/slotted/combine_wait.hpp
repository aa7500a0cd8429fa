// combine_wait: every block waits for the rows of all experts; then each token's rows become its output.
#pragma once

#include <type_traits>

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/row_sum.hpp"
#include "switchyard/detail/ep/token_outputs.hpp"
#include "switchyard/detail/ep/token_sources.hpp"
#include "switchyard/detail/sync/rank_waits.hpp"
#include "switchyard/detail/sync/signal.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Epilogue, typename Rows>
struct SlottedCombineWait {
  using Params = CombineParams<SlottedCombinePart, Epilogue>;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  EPLocalSyncCounters<Fixed::kShape.n_experts> counters{params.ep_counters};
  TokenSources& sources = target::shared_storage<TokenSources>();
  CombineRecvLayout recv_layout{shape.max_tokens_per_rank(), shape.top_k(), Rows::row_bytes(shape.hidden())};

  SWITCHYARD_DEVICE explicit SlottedCombineWait(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (!collect_rows()) return;  // a fault: the host resets all counters
    admit_successor();
    if (target::warp_idx() == 0) reset_cells();
    make_token_outputs<Epilogue, Rows>(*this, reinterpret_cast<std::byte*>(&sources + 1));
  }

  // Waits until every expert has sent its rows.
  SWITCHYARD_DEVICE bool collect_rows() {
    const TraceSlice slice(params.wait_context.trace, Phase::kCombineWait, TraceName::kCollectRows);
    // One block of a rank signals for all of its experts at once, so the first one's signal tells when.
    const uint64_t since_ns =
        time_ranks(params, Phase::kCombineWait, shape.n_ranks(), target::num_threads(), [&](int rank) {
          return target::ld_relaxed_system(my_cell(rank * shape.n_local_experts())) != kNothingArrived;
        });
    bool arrived = is_unpoisoned(params.wait_context);
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      uint64_t seen = kNothingArrived;
      // acquire MM-05: the expert's rows; pairs with the release in its owner's signal()
      arrived &= AwaitedSignal{params.wait_context, my_cell(expert_idx)}.wait_until(
          {Phase::kCombineWait, shape.owner_rank(expert_idx), expert_idx, 0}, seen,
          [](uint64_t cell) { return cell != kNothingArrived; }, since_ns);
    }
    return sync_block_all(arrived);
  }

  SWITCHYARD_DEVICE uint64_t* my_cell(int expert_idx) const { return params.recv_counts.mine + expert_idx; }

  // The last block to read the cells resets them for the next step: one warp does, while the others sum.
  SWITCHYARD_DEVICE void reset_cells() {
    int32_t num_before = 0;
    // acq_rel MM-06: every block's reads of the cells come before the last block's resets; pairs with itself
    if (target::lane_idx() == 0)
      num_before = target::atomic_add_acq_rel_device(counters.combine_blocks_left(), 1);
    const bool is_last_block = target::shuffle(num_before, 0) == target::num_blocks() - 1;
    if (!mutate<Fixed, LogicMutant::kCombineCellsResetTooEarly>(is_last_block, true)) return;
    for (int expert_idx = target::lane_idx(); expert_idx < shape.n_experts(); expert_idx += kWarpSize)
      target::st_relaxed_system(my_cell(expert_idx), kNothingArrived);
    if (target::lane_idx() == 0) target::st_relaxed_device(counters.combine_blocks_left(), 0);
  }

  // Returns the address of row k of a token; null for padding.
  SWITCHYARD_DEVICE const std::byte* row_of(int token_idx, int k) const {
    const int id = params.topk_ids[static_cast<int64_t>(token_idx) * shape.top_k() + k];
    if (mutate<Fixed, LogicMutant::kPaddingCombined>(shape.expert_of_id(id), 0) < 0) return nullptr;
    return recv_layout.row(params.recv_bufs.mine, token_idx, k);
  }
  SWITCHYARD_DEVICE float weight_of(int token_idx, int k) const {
    return params.topk_weights[static_cast<int64_t>(token_idx) * shape.top_k() +
                               mutate<Fixed, LogicMutant::kWeightsReversed>(k, shape.top_k() - 1 - k)];
  }
  // Returns lane k's source.
  SWITCHYARD_DEVICE TokenSource source_of_lane(int token_idx) const {
    const int k = target::lane_idx();
    if (k >= shape.top_k()) return {};
    return {row_of(token_idx, k), weight_of(token_idx, k)};
  }

  SWITCHYARD_DEVICE void store_unreduced(int token_idx, int worker_idx, int num_workers) {
    for (int k = 0; k < shape.top_k(); ++k) {
      const std::byte* row = row_of(token_idx, k);
      bf16* output = params.epilogue.output +
                     (static_cast<int64_t>(token_idx) * shape.top_k() + k) * params.epilogue.stride;
      for (int column = worker_idx * Rows::kColumns; column < shape.hidden();
           column += num_workers * Rows::kColumns)
        Rows::store(row, shape.hidden(), column, output);
    }
  }

  SWITCHYARD_DEVICE void reduce(RowSum<Rows>& row_sum, int token_idx, int worker_idx, int num_workers) {
    // The shared expert's rows are this rank's own, and bf16: each is one more row to add, unless rows travel
    // as fp8; finish() adds it then.
    constexpr bool kRowsAreBf16 = std::is_same_v<Rows, BF16CombineRows>;
    const TokenSource shared_expert = shared_expert_of(token_idx);
    const int num_sources =
        sources.gather(source_of_lane(token_idx), kRowsAreBf16 ? shared_expert : TokenSource{});
    const auto finish = [&](int column, float(&sums)[kColumnsPerThread]) {
      if (!kRowsAreBf16 && shared_expert.row != nullptr)
        accumulate(sums, BF16CombineRows::load(shared_expert.row, column), shared_expert.weight);
      params.epilogue(token_idx, column, sums);
    };
    row_sum.run({sources.of_warp[target::warp_idx()], num_sources, shape.hidden()}, worker_idx, num_workers,
                finish);
  }

  SWITCHYARD_DEVICE TokenSource shared_expert_of(int token_idx) const {
    const int row = params.shared_expert.row_of(token_idx);
    if (row < 0) return {};
    return {static_cast<const std::byte*>(params.expert_rows) +
                static_cast<uint64_t>(row) * BF16CombineRows::row_bytes(shape.hidden()),
            1.0f};
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
