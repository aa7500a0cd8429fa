// The kernel in front of a combine whose expert rows lie in memory that peers cannot read: copies those that
// dispatch has written, group by group, to where they can. A warp has a row at a time.
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct StoreRows {
  const StoreRowsParams& params;

  SWITCHYARD_DEVICE void run() const {
    const uint32_t warp =
        static_cast<uint32_t>(target::block_idx() * target::num_warps() + target::warp_idx());
    const uint32_t num_warps = static_cast<uint32_t>(target::num_blocks() * target::num_warps());
    // Warps go round the rows of all groups, so that many small groups keep all of them busy.
    uint32_t first = 0;
    for (int group_idx = 0; group_idx < params.num_groups; ++group_idx) {
      const uint32_t num_rows = target::ld(params.row_counts + group_idx);
      const uint32_t to_row = target::ld(params.row_offsets + group_idx);
      const uint64_t from_row =
          params.from_rows_per_group == 0 ? to_row : uint64_t{params.from_rows_per_group} * group_idx;
      const bool is_last = params.from_rows_per_group == 0 || group_idx + 1 == params.num_groups;
      const uint64_t next = is_last ? params.num_from_rows : from_row + params.from_rows_per_group;
      const uint64_t end = next < params.num_from_rows ? next : params.num_from_rows;
      if (num_rows > 0 && from_row + num_rows > end) return refuse(end, from_row + num_rows);
      for (uint32_t row = (warp + num_warps - first % num_warps) % num_warps; row < num_rows;
           row += num_warps)
        copy(params.from + (from_row + row) * params.row_bytes,
             params.to + (uint64_t{to_row} + row) * params.row_bytes);
      first += num_rows;
    }
  }

 private:
  // Peers would read what lies there from an earlier step. A step that broke has left any counts.
  SWITCHYARD_DEVICE void refuse(uint64_t end, uint64_t end_of_step) const {
    if (target::block_idx() != 0 || target::thread_idx() != 0 || is_poisoned(params.wait_context)) return;
    raise_fault(params.wait_context, FaultKind::kNoExpertRows, {Phase::kCombineAsync, -1, -1, end},
                end_of_step, 0);
  }

  SWITCHYARD_DEVICE void copy(const std::byte* from, std::byte* to) const {
    constexpr int kInFlight = 4;
    constexpr uint32_t kStride = kWarpSize * sizeof(Vec16);
    uint32_t at = static_cast<uint32_t>(target::lane_idx()) * static_cast<uint32_t>(sizeof(Vec16));
    for (; at + (kInFlight - 1) * kStride < params.row_bytes; at += kInFlight * kStride) {
      Vec16 values[kInFlight];
      SWITCHYARD_UNROLL
      for (int i = 0; i < kInFlight; ++i) values[i] = target::ld_16(from + at + i * kStride);
      SWITCHYARD_UNROLL
      for (int i = 0; i < kInFlight; ++i) target::st_16(to + at + i * kStride, values[i]);
    }
    for (; at < params.row_bytes; at += kStride) target::st_16(to + at, target::ld_16(from + at));
  }
};

SWITCHYARD_KERNEL void store_rows_kernel(StoreRowsParams params) { StoreRows{params}.run(); }

}  // namespace switchyard::inline SWITCHYARD_TARGET
