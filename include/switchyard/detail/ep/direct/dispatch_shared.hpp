// The shared memory of the direct dispatch.
#pragma once

#include "switchyard/detail/ep/direct/stages.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct alignas(128) DirectDispatchShared {
  static constexpr int kMaxNumbers = kEpKernelSizes.max_row_numbers;
  static constexpr uint32_t kCalledOff = UINT32_MAX;

  uint32_t num_before[kMaxExperts + 1];     // rows that blocks before this one send to each expert
  uint32_t num_from_here[kMaxExperts + 1];  // of this block and later ones; then the shared expert's
  uint32_t next_row[kMaxExperts];           // of this block, counted from this rank's first of the expert
  uint32_t my_first_row[kMaxExperts];       // where this rank's rows of each expert begin on its owner
  uint32_t first_row[kMaxExperts];          // other ranks' rows of each expert, then where it begins there
  uint32_t numbers[kMaxNumbers];            // of the block's first ids: see RowNumbers::number_of()
  uint32_t shared_rows[kMaxRanks];          // of each rank's shared expert, aligned; or kCalledOff
  uint32_t num_own_rows;
  target::TransferBarrier loaded[DirectStages::kMaxStages];
  bool is_last_block;

  // Behind it: DirectStages, as many as the launch has memory for.
  SWITCHYARD_DEVICE std::byte* stage_memory() { return reinterpret_cast<std::byte*>(this + 1); }
  SWITCHYARD_DEVICE static uint64_t stage_memory_bytes() {
    return target::shared_bytes() - sizeof(DirectDispatchShared);
  }

  // Returns the bytes of a launch that may have `limit`.
  template <typename Format>
  SWITCHYARD_HD static constexpr uint64_t bytes(const Format& format, int hidden, uint64_t limit);
};
template <typename Format>
SWITCHYARD_HD constexpr uint64_t DirectDispatchShared::bytes(const Format& format, int hidden,
                                                             uint64_t limit) {
  return sizeof(DirectDispatchShared) +
         DirectStages::of(format, hidden, limit - sizeof(DirectDispatchShared)).bytes();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
