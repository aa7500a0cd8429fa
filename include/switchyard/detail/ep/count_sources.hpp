// The kernel behind a dispatch whose caller asks how many rows each rank has sent: for every group of an
// expert, where the rows of each source rank begin within the group, and how many there are; and, added to
// what is there, how many rows the group has. A thread works on a group at a time.
#pragma once

#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct CountSources {
  const CountSourcesParams& params;

  SWITCHYARD_DEVICE void run() const {
    if (is_poisoned(params.wait_context)) return;  // a step that broke has left any counts
    // A step that does not fit on some rank moved no row.
    const bool is_skipped = target::ld(DirectCounters{params.ep_counters}.is_skipped()) != 0;
    for (int group_idx = target::block_idx() * target::num_threads() + target::thread_idx();
         group_idx < params.num_groups; group_idx += target::num_blocks() * target::num_threads())
      count(group_idx, is_skipped);
  }

 private:
  SWITCHYARD_DEVICE void count(int group_idx, bool is_skipped) const {
    uint32_t first_row = 0;
    for (int src_rank = 0; src_rank < params.n_ranks; ++src_rank) {
      const int pair_idx = group_idx * params.n_ranks + src_rank;
      const uint32_t num_rows =
          is_skipped ? 0 : StepCell::unpack(target::ld(params.step_cells + pair_idx)).value;
      if (params.source_ranges != nullptr)
        target::st(params.source_ranges + pair_idx, uint64_t{first_row} << 32 | num_rows);
      first_row += num_rows;
    }
    if (params.row_totals == nullptr) return;
    int32_t* total = params.row_totals + group_idx;
    target::st(total, target::ld(total) + static_cast<int32_t>(first_row));
  }
};

SWITCHYARD_KERNEL void count_sources_kernel(CountSourcesParams params) { CountSources{params}.run(); }

}  // namespace switchyard::inline SWITCHYARD_TARGET
