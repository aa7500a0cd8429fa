// A table in shared memory of the rows that arrived from each source rank; warps share rows by it.
#pragma once

#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The rows of a (local expert, source rank) pair; rows that are not wanted are left out of the table.
struct ArrivedCount {
  uint32_t num_rows;
  bool is_wanted;
};

struct ArrivedRow {
  int src_rank;
  uint32_t row;
};

struct ArrivedRows {
  PairTable rows;
  uint32_t first_row[kMaxExperts];  // [pair]

  // An expert's rows lie in the order of their source ranks. row_offsets has the first row of each local
  // expert, and count_of(local expert, source rank) says how many have come. All threads of a block
  // call this together; it ends with a barrier.
  template <typename Shape, typename CountOf>
  SWITCHYARD_DEVICE void find(const Shape& shape, const int32_t* row_offsets, CountOf count_of) {
    for (int local = target::thread_idx(); local < shape.n_local_experts(); local += target::num_threads()) {
      uint32_t row = static_cast<uint32_t>(target::ld(row_offsets + local));
      for (int rank = 0; rank < shape.n_ranks(); ++rank) {
        const int pair_idx = local * shape.n_ranks() + rank;
        const ArrivedCount count = count_of(local, rank);
        rows.first[pair_idx] = count.is_wanted ? count.num_rows : 0;
        first_row[pair_idx] = row;
        row += count.num_rows;
      }
    }
    target::sync_block();
    if (target::warp_idx() == 0) rows.scan(shape.n_experts());
    target::sync_block();
  }

  template <typename Shape>
  SWITCHYARD_DEVICE uint32_t total(const Shape& shape) const {
    return rows.total(shape.n_experts());
  }
  // Returns row `item_idx` of those that are wanted.
  template <typename Shape>
  SWITCHYARD_DEVICE ArrivedRow row(const Shape& shape, uint32_t item_idx) const {
    const int pair_idx = rows.find(item_idx, shape.n_experts());
    return {pair_idx % shape.n_ranks(), first_row[pair_idx] + (item_idx - rows.first[pair_idx])};
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
