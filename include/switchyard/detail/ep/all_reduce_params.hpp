// What the all-reduce behind a step without all-to-all exchanges, and its parameters.
#pragma once

#include "switchyard/detail/ep/params.hpp"

namespace switchyard {

// Values: bf16 [2][max_tokens][hidden]. Cells: uint64 [2][n_ranks], a StepCell each with the number of the
// rank's tokens, and behind them what a rank keeps for itself. Steps alternate between the two of each: a
// rank may have begun its next step before this one has looked at its cell, but not the step after that.
struct AllReduceLayout {
  int n_ranks;
  int max_tokens;
  int hidden;

  CheckedSize value_bytes() const {
    return CheckedSize(2) * CheckedSize(max_tokens) * CheckedSize(hidden) * CheckedSize(sizeof(bf16));
  }
  SWITCHYARD_HD bf16* values(bf16* base, uint32_t step) const {
    return base + static_cast<uint64_t>(step % 2) * max_tokens * hidden;
  }
  SWITCHYARD_HD constexpr uint64_t cell_bytes() const {
    return 2 * static_cast<uint64_t>(n_ranks) * sizeof(uint64_t) + 2 * sizeof(int32_t);
  }
  SWITCHYARD_HD uint64_t* cell(uint64_t* cells, uint32_t step, int rank) const {
    return cells + step % 2 * static_cast<uint32_t>(n_ranks) + rank;
  }
  // The number of steps that have ended.
  SWITCHYARD_HD int32_t* num_steps(uint64_t* cells) const {
    return reinterpret_cast<int32_t*>(cells + 2 * n_ranks);
  }
  SWITCHYARD_HD int32_t* blocks_done(uint64_t* cells) const { return num_steps(cells) + 1; }
};

struct AllReduceParams {
  AllReduceLayout layout;
  int32_t my_rank;
  Scope signal_scope;  // as in dispatch
  int32_t num_tokens;  // the same on all ranks: a rank with another number is a fault
  bf16* values;        // [num_tokens][hidden]: partial sums in, total sums out
  RankPointers<bf16> exchanged;
  RankPointers<uint64_t> cells;
  WaitContext wait_context;
};

}  // namespace switchyard
