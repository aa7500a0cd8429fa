// The kernel behind a dispatch whose caller asks for more than the rows: which rank each came from, and marks
// or zeros in those that only fill up their group. A block works on a group at a time.
#pragma once

#include "switchyard/detail/ep/annotate_rows_params.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct AnnotateRows {
  const AnnotateRowsParams& params;

  SWITCHYARD_DEVICE void run() const {
    // A step that broke has left any offsets and counts, and its rows may still be in flight.
    if (!sync_block_all(is_unpoisoned(params.wait_context))) return;
    // A step that does not fit on some rank moved no row.
    if (target::ld(params.row_offsets + params.num_groups) == 0) return;
    for (int group_idx = params.first_group + target::block_idx(); group_idx < params.num_groups;
         group_idx += target::num_blocks()) {
      const uint32_t end = target::ld(params.row_offsets + group_idx + 1);
      const uint32_t first_unwritten = name_sources(group_idx);
      store_sources(first_unwritten, end, -1);
      if (params.unwritten == UnwrittenRows::kLeft) continue;
      store<int32_t>(params.src_info, 2 * uint64_t{first_unwritten}, 2 * uint64_t{end}, -1);
      if (params.unwritten == UnwrittenRows::kZeroed) zero_rows(first_unwritten, end);
    }
  }

 private:
  // Returns the row behind the last one that was written.
  SWITCHYARD_DEVICE uint32_t name_sources(int group_idx) const {
    uint32_t row = target::ld(params.row_offsets + group_idx);
    if (group_idx < params.num_shared_groups) {
      store_sources(row, row + params.num_shared_rows, params.my_rank);
      return row + params.num_shared_rows;
    }
    for (int src_rank = 0; src_rank < params.n_ranks; ++src_rank) {
      const uint32_t end = row + num_rows((group_idx - params.num_shared_groups) * params.n_ranks + src_rank);
      store_sources(row, end, params.n_ranks == 1 ? params.my_rank : src_rank);
      row = end;
    }
    return row;
  }

  // Of a (local expert, source rank) pair.
  SWITCHYARD_DEVICE uint32_t num_rows(int pair_idx) const {
    return params.step_cells != nullptr
               ? StepCell::unpack(target::ld(params.step_cells + pair_idx)).value
               : static_cast<uint32_t>(target::ld(params.ep_counters.row_count(pair_idx)));
  }

  SWITCHYARD_DEVICE void store_sources(uint32_t first_row, uint32_t end, int32_t src_rank) const {
    if (params.src_ranks != nullptr) store<int32_t>(params.src_ranks, first_row, end, src_rank);
  }

  SWITCHYARD_DEVICE void zero_rows(uint32_t first_row, uint32_t end) const {
    store<Vec16>(params.rows, uint64_t{first_row} * params.row_bytes / sizeof(Vec16),
                 uint64_t{end} * params.row_bytes / sizeof(Vec16), Vec16{});
    const uint32_t num_scales = static_cast<uint32_t>(params.num_scales);
    switch (params.scale_placement) {
      case ScalePlacement::kNone:
        return;
      case ScalePlacement::kByRow:
        return store<uint8_t>(params.scales, uint64_t{first_row} * params.row_scale_bytes,
                              uint64_t{end} * params.row_scale_bytes, 0);
      case ScalePlacement::kTransposed: {
        const TransposedScaleLayout layout{params.num_scales, params.max_rows};
        for (int i = 0; i < params.num_scales; ++i)
          store<float>(params.scales, layout.index(i, first_row), layout.index(i, end), 0);
        return;
      }
      case ScalePlacement::kPacked: {
        const PackedScaleLayout layout{params.num_scales, params.max_rows};
        for (int i = 0; i < layout.num_words(); ++i)
          store<uint32_t>(params.scales, layout.word_index(i, first_row), layout.word_index(i, end), 0);
        return;
      }
      case ScalePlacement::kTiled: {
        const TiledScaleLayout layout{params.num_scales};
        for (uint64_t i = static_cast<uint64_t>(target::thread_idx());
             i < uint64_t{end - first_row} * num_scales; i += static_cast<uint64_t>(target::num_threads()))
          target::st(reinterpret_cast<uint8_t*>(params.scales) +
                         layout.offset(static_cast<int64_t>(first_row + i / num_scales),
                                       static_cast<int>(i % num_scales)),
                     uint8_t{0});
        return;
      }
    }
  }

  // All threads of the block store the value to the elements [begin, end).
  template <typename T>
  SWITCHYARD_DEVICE static void store(void* elements, uint64_t begin, uint64_t end, const T& value) {
    for (uint64_t i = begin + static_cast<uint64_t>(target::thread_idx()); i < end;
         i += static_cast<uint64_t>(target::num_threads()))
      if constexpr (sizeof(T) == sizeof(Vec16))
        target::st_16(static_cast<std::byte*>(elements) + i * sizeof(Vec16), value);
      else
        target::st(static_cast<T*>(elements) + i, value);
  }
};

SWITCHYARD_KERNEL void annotate_rows_kernel(AnnotateRowsParams params) { AnnotateRows{params}.run(); }

}  // namespace switchyard::inline SWITCHYARD_TARGET
