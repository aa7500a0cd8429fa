// The kernel behind a dispatch that has carried a token once to each rank (RowDelivery::kReceiver): it fills
// the other rows that the token has here, its siblings. All that it reads was there when dispatch_wait ended.
#pragma once

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/arrived_rows.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/sibling_rows_params.hpp"
#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The siblings behind a token's first row on this rank: lane i has the row of the i-th. A whole warp makes
// the object.
struct SiblingRows {
  uint32_t row_of_lane = 0;
  int count = 0;

  SWITCHYARD_DEVICE SiblingRows(const uint32_t* links, uint32_t first_row) {
    RowLink link = RowLink::unpack(target::ld(links + first_row));
    if (!link.is_first) return;
    for (; link.next_row != RowLink::kNone && count < kMaxTopK - 1; ++count) {
      if (target::lane_idx() == count) row_of_lane = link.next_row;
      link = RowLink::unpack(target::ld(links + link.next_row));
    }
  }
  SWITCHYARD_DEVICE uint32_t row(int i) const { return target::shuffle(row_of_lane, i); }
};

// Finds the rows that have come from the ranks that are wanted. Returns false if there is nothing to work on:
// a step that broke may have left anything, and one that does not fit has moved no row. Called by all threads
// of the block.
template <FixedShape Fixed, typename IsWanted>
SWITCHYARD_DEVICE bool find_linked_rows(const ShapeOf<Fixed>& shape, const LinkedRows& linked,
                                        ArrivedRows& arrived, IsWanted is_wanted) {
  const DirectCounters counters{linked.ep_counters};
  const bool is_skipped =
      mutate<Fixed, LogicMutant::kSkippedStepFilled>(target::ld(counters.is_skipped()) != 0, false);
  if (!sync_block_all(is_unpoisoned(linked.wait_context)) || is_skipped) return false;
  arrived.find(shape, counters.row_offset(linked.first_group), [&](int local, int rank) {
    const uint64_t cell = target::ld(linked.step_cells + local * shape.n_ranks() + rank);
    return ArrivedCount{StepCell::unpack(cell).value, is_wanted(rank)};
  });
  return true;
}

template <FixedShape Fixed>
struct FillSiblings {
  const FillSiblingsParams& params;
  const LinkedRows& linked = params.linked;
  const ShapeOf<Fixed> shape{linked.shape};
  ArrivedRows& arrived = target::shared_storage<ArrivedRows>();

  SWITCHYARD_DEVICE explicit FillSiblings(const FillSiblingsParams& params_in) : params(params_in) {}

  // This rank has carried its own tokens to every row.
  SWITCHYARD_DEVICE void run() const {
    if (!find_linked_rows(shape, linked, arrived, [&](int rank) { return rank != linked.my_rank; })) return;
    for_each_row(arrived.total(shape), [&](uint32_t item_idx, int worker_idx, int num_workers) {
      fill_siblings_of(arrived.row(shape, item_idx).row, worker_idx, num_workers);
    });
  }

 private:
  SWITCHYARD_DEVICE void fill_siblings_of(uint32_t row, int worker_idx, int num_workers) const {
    const SiblingRows siblings(linked.links, row);
    if (siblings.count == 0) return;
    copy_row(row, siblings, worker_idx, num_workers);
    if (params.scales_bytes == 0) return;
    for (int i = 0; i < siblings.count; ++i)
      copy_bytes(params.scales + uint64_t{siblings.row(i)} * params.scales_bytes,
                 params.scales + uint64_t{row} * params.scales_bytes, params.scales_bytes, worker_idx,
                 num_workers);
  }

  // The row is read once. All loads are in flight before the first is stored.
  SWITCHYARD_DEVICE void copy_row(uint32_t row, const SiblingRows& siblings, int worker_idx,
                                  int num_workers) const {
    constexpr uint32_t kInFlight = 8;
    constexpr uint32_t kVectorBytes = sizeof(Vec16);
    const uint32_t num_vectors = params.row_bytes / kVectorBytes, stride = static_cast<uint32_t>(num_workers);
    const uint32_t lane_idx = static_cast<uint32_t>(target::lane_idx());
    const int num_filled =
        mutate<Fixed, LogicMutant::kLastSiblingNotFilled>(siblings.count, siblings.count - 1);
    for (uint32_t first = static_cast<uint32_t>(worker_idx) - lane_idx; first < num_vectors;
         first += kInFlight * stride) {
      const auto offset_of = [&](uint32_t i) { return (first + lane_idx + i * stride) * kVectorBytes; };
      Vec16 loaded[kInFlight] = {};
      SWITCHYARD_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i)
        if (offset_of(i) < params.row_bytes) loaded[i] = target::ld_16(address_of(row) + offset_of(i));
      for (int sibling_idx = 0; sibling_idx < num_filled; ++sibling_idx) {
        std::byte* sibling = address_of(siblings.row(sibling_idx));
        SWITCHYARD_UNROLL
        for (uint32_t i = 0; i < kInFlight; ++i)
          if (offset_of(i) < params.row_bytes) target::st_16(sibling + offset_of(i), loaded[i]);
      }
    }
  }
  SWITCHYARD_DEVICE std::byte* address_of(uint32_t row) const {
    return params.rows + uint64_t{row} * params.row_bytes;
  }
};

template <FixedShape Fixed>
SWITCHYARD_KERNEL void fill_siblings_kernel(FillSiblingsParams params) {
  begin_kernel<Fixed>();
  FillSiblings<Fixed>{params}.run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
