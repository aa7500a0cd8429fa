// The all-reduce that completes a step without all-to-all: every rank publishes its partial sums and adds up
// those of all ranks, in rank order, in fp32, rounded once. Every rank reads all of them, so one exchange of
// signals is enough.
#pragma once

#include "switchyard/detail/ep/all_reduce_params.hpp"
#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/step_signal.hpp"
#include "switchyard/detail/ep/epilogue.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct AllReduceShared {
  bool is_last_block;
};

// The kernel fixes nothing of its shape; the argument only says whether it is a mutant.
template <FixedShape Fixed>
struct AllReduce {
  const AllReduceParams& params;
  uint64_t* const my_cells = params.cells.mine;
  const uint32_t step = 1 + static_cast<uint32_t>(target::ld(params.layout.num_steps(my_cells)));
  const int64_t num_chunks =
      static_cast<int64_t>(params.num_tokens) * params.layout.hidden / kColumnsPerThread;
  AllReduceShared& shared = target::shared_storage<AllReduceShared>();

  SWITCHYARD_DEVICE explicit AllReduce(const AllReduceParams& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (!sync_block_all(is_unpoisoned(params.wait_context))) return;
    publish_values();
    if (!collect()) return;  // a fault: the host resets everything
    admit_successor();
    // This rank's own signal says that all of its blocks have read the old number.
    if (target::block_idx() == 0 && target::thread_idx() == 0)
      target::st(params.layout.num_steps(my_cells), static_cast<int32_t>(step));
    const TraceSlice slice(params.wait_context.trace, Phase::kAllReduce, TraceName::kReduce);
    for_each_chunk([&](int64_t chunk) { reduce(chunk); });
  }

  // A chunk is eight columns of a token.
  template <typename Work>
  SWITCHYARD_DEVICE void for_each_chunk(Work work) const {
    const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
    for (int64_t chunk =
             static_cast<int64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
         chunk < num_chunks; chunk += num_threads)
      work(chunk);
  }
  SWITCHYARD_DEVICE bf16* shown(int rank, int64_t chunk) const {
    const uint32_t buffer_step = mutate<Fixed, LogicMutant::kOneBuffer>(step, 0);
    return params.layout.values(params.exchanged.of_rank[rank], buffer_step) + chunk * kColumnsPerThread;
  }

  // Stores this rank's values where its peers read them; the last block signals them.
  SWITCHYARD_DEVICE void publish_values() {
    const TraceSlice slice(params.wait_context.trace, Phase::kAllReduce, TraceName::kSendRows);
    for_each_chunk([&](int64_t chunk) {
      target::st_16(shown(params.my_rank, chunk), target::ld_16(params.values + chunk * kColumnsPerThread));
    });
    int32_t* blocks_done = params.layout.blocks_done(my_cells);
    target::sync_block();
    if (target::thread_idx() == 0)
      // acq_rel MM-13: collects the values of all blocks before the last one signals; pairs with itself in
      // the other blocks
      shared.is_last_block = target::atomic_add_acq_rel_device(blocks_done, 1) == target::num_blocks() - 1;
    target::sync_block();
    if (!shared.is_last_block) return;
    for (int rank = target::thread_idx(); rank < params.layout.n_ranks; rank += target::num_threads())
      // release MM-14: lets the rank read this rank's values; pairs with the acquire in its collect()
      PeerSignal{params.signal_scope, params.layout.cell(params.cells.of_rank[rank], step, params.my_rank)}
          .publish(StepCell{step, static_cast<uint32_t>(params.num_tokens)}.pack());
    if (target::thread_idx() == 0) target::st_relaxed_device(blocks_done, 0);
  }

  SWITCHYARD_DEVICE bool collect() {
    const TraceSlice slice(params.wait_context.trace, Phase::kAllReduce, TraceName::kCollectRows);
    bool arrived = true;
    for (int rank = target::thread_idx(); rank < params.layout.n_ranks; rank += target::num_threads()) {
      const AwaitedStep<StepCell> signal{params.wait_context, params.layout.cell(my_cells, step, rank)};
      StepCell cell{};
      // acquire MM-14: the rank's values; pairs with the release in its publish_values()
      arrived &=
          signal.wait_until(step, Phase::kAllReduce, rank, -1, cell) && has_as_many_tokens(rank, cell.value);
    }
    return sync_block_all(arrived);
  }

  // Ranks whose numbers of tokens differ find out before they read anything of each other.
  SWITCHYARD_DEVICE bool has_as_many_tokens(int rank, uint32_t num_tokens) const {
    const uint32_t expected = static_cast<uint32_t>(params.num_tokens);
    if (!kChecked || num_tokens == expected) return true;
    raise_fault(params.wait_context, FaultKind::kTokenCountMismatch, {Phase::kAllReduce, rank, -1, expected},
                num_tokens, 0);
    return false;
  }

  SWITCHYARD_DEVICE void reduce(int64_t chunk) const {
    float sums[kColumnsPerThread] = {};
    for (int rank = 0; rank < params.layout.n_ranks; ++rank)
      accumulate(sums, target::ld_16(shown(rank, chunk)), 1.0f);
    StoreWeighted{params.values, params.layout.hidden}(
        static_cast<int>(chunk * kColumnsPerThread / params.layout.hidden),
        static_cast<int>(chunk * kColumnsPerThread % params.layout.hidden), sums);
  }
};

template <FixedShape Fixed>
SWITCHYARD_KERNEL void all_reduce_kernel(AllReduceParams params) {
  begin_kernel<Fixed>();
  AllReduce<Fixed>(params).run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
