// dispatch_async, direct protocol: ranks tell each other how many rows they have for every expert; from that
// each computes where every row of its own goes, and bulk copies carry a token from shared memory straight
// to its top_k rows. Rows are ordered by expert, then source rank, then token, then k; no atomic decides.
#pragma once

#include <type_traits>

#include "switchyard/detail/ep/direct/assigned_rows.hpp"
#include "switchyard/detail/ep/direct/carry_encoded.hpp"
#include "switchyard/detail/ep/direct/carry_tokens.hpp"
#include "switchyard/detail/ep/direct/destination_rows.hpp"
#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/direct/far_rows.hpp"
#include "switchyard/detail/ep/direct/row_counts.hpp"
#include "switchyard/detail/ep/direct/row_numbers.hpp"
#include "switchyard/detail/ep/direct/staged_tokens.hpp"
#include "switchyard/detail/ep/expert_counts.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct DirectDispatchAsync {
  using Params = DispatchParams<DirectDispatchPart, Format>;
  using Carry =
      std::conditional_t<EncodedRowFormat<Format>, CarryEncoded<Fixed, Format>, CarryTokens<Fixed, Format>>;

  const Params& params;
  // These loads are issued first and used later, to hide their latency.
  const uint32_t step = 1 + static_cast<uint32_t>(target::ld(DirectCounters{params.ep_counters}.num_steps()));
  const bool is_healthy = is_unpoisoned(params.wait_context);
  const IdBatch first_ids =
      IdBatch::load(params.topk_ids, ShapeOf<Fixed>{params.shape}.top_k() * params.num_tokens, 0);
  const ShapeOf<Fixed> shape{params.shape};
  DirectDispatchShared& shared = target::shared_storage<DirectDispatchShared>();
  const uint32_t token_bytes =
      static_cast<uint32_t>(shape.hidden()) * static_cast<uint32_t>(sizeof(typename Format::Input));
  // The parts hold each other by value: an object that holds its own address cannot live in registers.
  const DestinationRows<Fixed, Format> rows{
      params, shape, DestinationRows<Fixed, Format>::bytes_of_row(params.format, token_bytes)};
  const StagedTokens<Fixed> staged{
      params.input_tokens,
      loaded_bytes(),
      params.token_stride,
      DirectStages::of(params.format, shape.hidden(), DirectDispatchShared::stage_memory_bytes()),
      TokenRange::of_block(params.num_tokens),
      shared};
  const RowCounts<Fixed, Format> counts{params, shape, step, shared};
  const RowNumbers<Fixed> numbers{shape, params.topk_ids, params.row_of, staged.tokens, shared};
  const AssignedRows<Fixed, Format> assigned{params, shape, staged, numbers, rows};

  SWITCHYARD_DEVICE explicit DirectDispatchAsync(const Params& params_in) : params(params_in) {}

  // What is loaded of a token: all of it, or the codes that it comes as.
  SWITCHYARD_DEVICE uint32_t loaded_bytes() const {
    if constexpr (InPlaceTokenFormat<Format>)
      return params.input_scales != nullptr ? params.format.row_bytes() : token_bytes;
    else
      return token_bytes;
  }

  SWITCHYARD_DEVICE void run() {
    const int first_choice = assigned.choice_of_turn(0);
    begin();
    staged.start_loads();  // the first tokens are in flight while the ranks agree where they go
    // False: an earlier step broke and was not reset.
    if (!counts.count_rows(first_ids, numbers.first_id(), is_healthy)) return staged.drain_loads();
    counts.send_counts();
    // While the counts are in flight:
    numbers.number_rows();
    const Carry carry{params, shape, staged, assigned, rows};
    if constexpr (EncodedRowFormat<Format>) carry.encode_first();
    if (!counts.collect_counts()) return staged.drain_loads();  // a fault: the host resets everything
    const bool has_room = counts.assign_experts();
    if (!has_room) {
      staged.drain_loads();
    } else {
      if constexpr (kHasWire<Fixed>) {
        rows.far().assign_places(shared, counts);
        target::sync_block();
      }
      assigned.assign();
      carry.run(first_choice);
    }
    finish(has_room);
    if constexpr (kCanSendScales<Fixed, Format> && InPlaceTokenFormat<Format>)
      mutate<Fixed, LogicMutant::kScalesBehindSignal>([] {},
                                                      [&] {
                                                        if (has_room) carry.store_last_scales();
                                                      });
  }

  SWITCHYARD_DEVICE void begin() {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kBegin);
    counts.init();
    staged.init();
    target::sync_block();
  }

  // The last block signals the owners that this rank's rows are complete, expert by expert.
  SWITCHYARD_DEVICE void finish(bool has_rows) {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kFinish);
    const DirectCounters counters{params.ep_counters};
    target::sync_block();
    if (target::thread_idx() == 0)
      // acq_rel MM-09: collects the copies of all blocks before the last one signals; pairs with itself in
      // the other blocks
      shared.is_last_block = target::atomic_add_acq_rel_device(counters.blocks_done(), 1) ==
                             mutate<Fixed, LogicMutant::kFirstBlockReady>(target::num_blocks() - 1, 0);
    target::sync_block();
    if (!shared.is_last_block) return;
    if constexpr (kHasWire<Fixed>)
      if (has_rows) rows.far().put_sources(shared, counts);
    const DispatchCountLayout ready{shape.n_experts(), shape.n_ranks()};
    SWITCHYARD_ROLLED
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      if (has_rows) add_to_expert_count<Fixed>(params, expert_idx, counts.num_rows(expert_idx));
      // release MM-10: hands the owner this rank's rows of the expert; pairs with the acquire in
      // dispatch_wait over there, and with whoever looks at the readiness of an expert before
      publish<Fixed>(
          params, params.recv_counts, shape.owner_rank(expert_idx),
          [&](uint64_t* cells) { return ready.cell(cells, shape.local_expert(expert_idx), params.my_rank); },
          StepCell{step, counts.num_rows(expert_idx)}.pack());
    }
    if (target::thread_idx() == 0) target::st_relaxed_device(counters.blocks_done(), 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
