// Dispatch to far ranks, those that are reached over the wire only. A network cannot read shared memory: what
// goes to a far row is kept in this rank's arena until the rank has answered, in its combine. The rows that
// this rank has for one expert are neighbours at the owner, so what is stored beside them (which token each
// was made from) is collected here and put once per expert.
#pragma once

#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/direct/staged_scales.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct FarRows {
  using Params = DispatchParams<DirectDispatchPart, Format>;

  const Params& params;
  const ShapeOf<Fixed>& shape;
  const uint32_t row_bytes;

  SWITCHYARD_DEVICE bool is_far(int rank) const {
    return peer_pointer<Fixed>(params, params.recv_bufs, rank) == nullptr;
  }

  // Called by a whole warp with the row, and the scales, of a token for its choice k, or for all choices (k
  // is 0 then). They are put to the row of each lane that has a far owner and carries; others have owner -1,
  // or their row is filled by its owner.
  SWITCHYARD_DEVICE void put(int token_idx, int k, const std::byte* row,
                             [[maybe_unused]] const std::byte* scales, int owner, uint32_t row_idx,
                             bool carries = true) const {
    const bool goes_far = owner >= 0 && is_far(owner);
    if (target::ballot(goes_far) == 0) return;
    const uint64_t kept_idx = mutate<Fixed, LogicMutant::kKeptRowOverwritten>(
        static_cast<uint64_t>(token_idx) * (EncodesByExpert<Format> ? shape.top_k() : 1) + k, uint64_t{0});
    std::byte* kept_row = params.wire.kept_rows + kept_idx * row_bytes;
    target::copy_row(kept_row, row, row_bytes, target::lane_idx(), kWarpSize);
    if constexpr (EncodedRowFormat<Format>) {
      std::byte* kept_scales = params.wire.kept_scales + kept_idx * kept_scales_stride();
      copy_bytes(kept_scales, scales, scale_row_bytes(params.format), target::lane_idx(), kWarpSize);
      target::sync_warp();
      const bool puts_scales = mutate<Fixed, LogicMutant::kFarScalesNotPut>(goes_far && carries, false);
      for_each_far_lane(puts_scales, [&](int lane) {
        target::wire_put_warp(params.peers.wire, target::shuffle(owner, lane),
                              scales_of_row(target::shuffle(row_idx, lane)), kept_scales,
                              scale_row_bytes(params.format));
      });
    }
    target::fence_proxy_async_shared();  // the stage was read by ordinary loads, and bulk copies overwrite it
    target::sync_warp();
    for_each_far_lane(goes_far && carries, [&](int lane) {
      target::wire_put_warp(params.peers.wire, target::shuffle(owner, lane),
                            params.recv_bufs.mine + uint64_t{target::shuffle(row_idx, lane)} * row_bytes,
                            kept_row, row_bytes);
    });
  }

  // Collects what store_source() stores for a near row.
  SWITCHYARD_DEVICE void collect_source(const DirectDispatchShared& shared, int expert_idx, uint32_t row_idx,
                                        uint64_t src_info) const {
    const uint32_t kept_idx = kept_idx_of(shared, expert_idx, row_idx);
    target::st(params.wire.kept_sources + kept_idx, src_info);
    if constexpr (InterleavedTokenFormat<Format>)
      if (!(kLinksRows<Fixed> && params.carries_once))
        target::st(params.wire.kept_scale_sources + kept_idx,
                   ScaleSource{static_cast<uint32_t>(params.my_rank), ScaleSource::kArrived}.pack());
  }

  // Collects a row's link, and its weight if owners ask for weights.
  SWITCHYARD_DEVICE void collect_link(const DirectDispatchShared& shared, int expert_idx, uint32_t row_idx,
                                      const RowLink& link, float weight,
                                      [[maybe_unused]] SiblingScales scales) const {
    const uint32_t kept_idx = kept_idx_of(shared, expert_idx, row_idx);
    target::st(params.wire.kept_links + kept_idx, link.pack());
    if constexpr (InterleavedTokenFormat<Format>)
      if (params.carries_once) target::st(params.wire.kept_scale_sources + kept_idx, scales.pack());
    if (params.topk_weights != nullptr) target::st(params.wire.kept_row_weights + kept_idx, weight);
  }

  // Computes where the rank's rows of each expert begin among all that it sends, in next_row, which nothing
  // needs once all rows have their numbers. Called by all threads between two barriers.
  SWITCHYARD_DEVICE static uint32_t first_of(const DirectDispatchShared& shared, int expert_idx) {
    return shared.next_row[expert_idx];
  }
  template <typename Counts>
  SWITCHYARD_DEVICE void assign_places(DirectDispatchShared& shared, const Counts& counts) const {
    if (target::warp_idx() != 0) return;
    const ScanRun run(shape.n_experts(), target::lane_idx(), kWarpSize);
    uint32_t sum = 0;
    for (int expert_idx = run.begin; expert_idx < run.end; ++expert_idx) sum += counts.num_rows(expert_idx);
    uint32_t kept_idx = warp_inclusive_sum(sum) - sum;
    for (int expert_idx = run.begin; expert_idx < run.end; ++expert_idx) {
      shared.next_row[expert_idx] = kept_idx;
      kept_idx += counts.num_rows(expert_idx);
    }
  }

  // Puts what was collected, and settles it together with the rows that all blocks have put. Called by all
  // threads of the last block.
  template <typename Counts>
  SWITCHYARD_DEVICE void put_sources(const DirectDispatchShared& shared, const Counts& counts) const {
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      const int owner = shape.owner_rank(expert_idx);
      const uint32_t num_rows = counts.num_rows(expert_idx);
      if (num_rows == 0 || !is_far(owner)) continue;
      const uint32_t first_row = shared.my_first_row[expert_idx], kept_idx = first_of(shared, expert_idx);
      target::wire_put(params.peers.wire, owner,
                       reinterpret_cast<uint64_t*>(params.src_infos.mine) + first_row,
                       params.wire.kept_sources + kept_idx, uint64_t{num_rows} * sizeof(uint64_t));
      if constexpr (InterleavedTokenFormat<Format>)
        target::wire_put(
            params.peers.wire, owner,
            reinterpret_cast<uint32_t*>(params.recv_bufs.mine + params.scale_sources_offset) + first_row,
            params.wire.kept_scale_sources + kept_idx, uint64_t{num_rows} * sizeof(uint32_t));
      if constexpr (kLinksRows<Fixed> && !is_mutant<Fixed>(LogicMutant::kFarLinksNotPut))
        target::wire_put(
            params.peers.wire, owner,
            reinterpret_cast<uint32_t*>(params.recv_bufs.mine + params.row_links_offset) + first_row,
            params.wire.kept_links + kept_idx, uint64_t{num_rows} * sizeof(uint32_t));
      if constexpr (kLinksRows<Fixed> && !is_mutant<Fixed>(LogicMutant::kFarWeightsNotPut))
        if (params.topk_weights != nullptr)
          target::wire_put(
              params.peers.wire, owner,
              reinterpret_cast<float*>(params.recv_bufs.mine + params.row_weights_offset) + first_row,
              params.wire.kept_row_weights + kept_idx, uint64_t{num_rows} * sizeof(float));
    }
    target::sync_block();
    settle_block(params.peers.wire);
  }

 private:
  SWITCHYARD_DEVICE static uint32_t kept_idx_of(const DirectDispatchShared& shared, int expert_idx,
                                                uint32_t row_idx) {
    return first_of(shared, expert_idx) + (row_idx - shared.my_first_row[expert_idx]);
  }
  SWITCHYARD_DEVICE uint32_t kept_scales_stride() const {
    return align_up(scale_row_bytes(params.format), 16u);
  }
  // Returns where the scales of a row are put: beside the row, or, if the tensor interleaves rows, where the
  // owner's dispatch_wait fetches them.
  SWITCHYARD_DEVICE std::byte* scales_of_row(uint32_t row_idx) const {
    const uint64_t offset = uint64_t{row_idx} * scale_row_bytes(params.format);
    if constexpr (kLinksRows<Fixed> && Format::kInterleavesRows)
      if (params.carries_once) return arrived_scales(params, params.recv_bufs.mine, row_idx);
    if constexpr (Format::kInterleavesRows) return params.wire.arrived_scales + offset;
    return params.recv_bufs.mine + params.scales_offset + offset;
  }
};

// The counts of this rank on their way to far ranks: its row of the table, in one put each, and a signal.
template <FixedShape Fixed, typename Format>
struct FarCounts {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const uint32_t step;
  const CountTableLayout table;

  SWITCHYARD_DEVICE bool is_far(int rank) const {
    return peer_pointer<Fixed>(params, params.count_tables, rank) == nullptr;
  }

  // Called by all threads of one block. `own_cell(cell_idx)` makes a cell of this rank's row.
  template <typename OwnCell>
  SWITCHYARD_DEVICE void send(OwnCell own_cell) const {
    uint64_t* own_row = table.cell(params.count_tables.mine, params.my_rank, 0);
    for (int cell_idx = target::thread_idx(); cell_idx < table.cells_per_rank();
         cell_idx += target::num_threads())
      target::st(own_row + cell_idx, own_cell(cell_idx).pack());
    target::sync_block();
    for_each_far_rank([&](int rank) {
      target::wire_put(params.peers.wire, rank, own_row, own_row,
                       static_cast<uint64_t>(table.cells_per_rank()) * sizeof(uint64_t));
    });
    target::sync_block();
    settle_block(params.peers.wire);
    for_each_far_rank([&](int rank) {
      // release MM-28: hands the rank this rank's counts, and says that this rank has finished the previous
      // step; pairs with the acquire in await() over there
      target::wire_signal(params.peers.wire, rank, params.wire.counts_ready + params.my_rank,
                          StepCell{step, 0}.pack());
    });
  }

  // Waits for the counts of a far rank, and takes a cell.
  SWITCHYARD_DEVICE bool await(int src_rank, int cell_idx, CountCell& cell, uint64_t since_ns) const {
    StepCell ready{};
    // acquire MM-28: the rank's counts; pairs with the signal in its send()
    const bool arrived =
        ready_signal(src_rank).wait_until(step, Phase::kDispatchAsync, src_rank, -1, ready, since_ns);
    if (arrived)
      cell = CountCell::unpack(target::ld(table.cell(params.count_tables.mine, src_rank, cell_idx)));
    return arrived;
  }
  SWITCHYARD_DEVICE bool have_come(int src_rank) const { return ready_signal(src_rank).has_come(step); }

 private:
  SWITCHYARD_DEVICE AwaitedStep<StepCell> ready_signal(int src_rank) const {
    return {params.wait_context, params.wire.counts_ready + src_rank};
  }
  template <typename Work>
  SWITCHYARD_DEVICE void for_each_far_rank(Work work) const {
    for (int rank = target::thread_idx(); rank < table.n_ranks; rank += target::num_threads())
      if (rank != params.my_rank && is_far(rank)) work(rank);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
