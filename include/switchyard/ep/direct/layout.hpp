// What the ranks of the direct protocol exchange besides rows. Every cell carries the number of the step it
// belongs to, so nothing is ever put back: a cell that holds another step's number says that nothing has
// arrived yet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/base/checked.hpp"
#include "switchyard/ep/shape.hpp"

namespace switchyard {

// Steps count from 1, so that zeroed cells belong to none. The number wraps: only equality is ever asked.
struct StepCell {
  uint32_t step;
  uint32_t value;

  SWITCHYARD_HD constexpr uint64_t pack() const { return uint64_t{step} << 32 | value; }
  SWITCHYARD_HD static constexpr StepCell unpack(uint64_t cell) {
    return {static_cast<uint32_t>(cell >> 32), static_cast<uint32_t>(cell)};
  }
};

// uint64 [n_ranks][n_experts], a copy on every rank: rows that each rank sends to each expert.
struct CountTableLayout {
  int n_ranks;
  int n_experts;

  CheckedSize bytes() const {
    return CheckedSize(n_ranks) * CheckedSize(n_experts) * CheckedSize(sizeof(uint64_t));
  }
  SWITCHYARD_HD uint64_t* cell(uint64_t* base, int src_rank, int expert_idx) const {
    return base + static_cast<int64_t>(src_rank) * n_experts + expert_idx;
  }
};

// uint64 [n_ranks]: where in its memory each rank's expert output lies, in units of 16 bytes.
struct OutputCellLayout {
  int n_ranks;
  static constexpr uint32_t kUnit = 16;

  CheckedSize bytes() const { return CheckedSize(n_ranks) * CheckedSize(sizeof(uint64_t)); }
};

// What a rank keeps for itself from one kernel to the next, in int32.
struct DirectCounters {
  int32_t* ptr;

  static constexpr int size(int n_local_experts) { return kRowOffsets + n_local_experts + 1; }

  // Steps whose dispatch has ended.
  SWITCHYARD_HD int32_t* num_steps() const { return ptr; }
  SWITCHYARD_HD int32_t* blocks_done() const { return ptr + 1; }
  // 1: the step does not fit, on some rank; no rank moves anything.
  SWITCHYARD_HD int32_t* is_skipped() const { return ptr + 2; }
  // Of this rank's local experts, and behind them their total.
  SWITCHYARD_HD int32_t* row_offset(int local_expert_idx) const {
    return ptr + kRowOffsets + local_expert_idx;
  }

 private:
  static constexpr int kRowOffsets = 4;
};

}  // namespace switchyard
