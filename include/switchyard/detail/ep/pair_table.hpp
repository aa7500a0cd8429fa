// Where the items (messages or rows) of each (local expert, source rank) pair begin when all pairs are laid
// end to end: every warp of a launch finds its share without communication. Also the scans by which both
// protocols turn counts into offsets.
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// How threads that scan an array together share it: each has a run of neighbouring elements.
struct ScanRun {
  int begin, end;

  SWITCHYARD_DEVICE ScanRun(int count, int thread_idx, int num_threads) {
    const int run_length = ceil_div(count, num_threads);
    begin = thread_idx * run_length;
    end = begin + run_length < count ? begin + run_length : count;
  }
};

// Returns the sum of the values of this lane and of those below it.
SWITCHYARD_DEVICE uint32_t warp_inclusive_sum(uint32_t value) {
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const uint32_t below = target::shuffle_up(value, delta);
    if (target::lane_idx() >= delta) value += below;
  }
  return value;
}

// Turns values[0..count) into their exclusive prefix sums and stores the total at values[count]. Called by
// one whole warp.
SWITCHYARD_DEVICE void warp_exclusive_scan(uint32_t* values, int count) {
  const ScanRun run(count, target::lane_idx(), kWarpSize);
  uint32_t sum = 0;
  for (int i = run.begin; i < run.end; ++i) sum += values[i];
  const uint32_t inclusive = warp_inclusive_sum(sum);
  uint32_t before = inclusive - sum;
  for (int i = run.begin; i < run.end; ++i) {
    const uint32_t value = values[i];
    values[i] = before;
    before += value;
  }
  if (target::lane_idx() == kWarpSize - 1) values[count] = inclusive;
}

// This table lives in shared memory. It is filled with counts first; scan() turns them into offsets.
struct PairTable {
  uint32_t first[kMaxExperts + 1];  // [pair]; after scan(), first[num_pairs] is the total

  // Called by one whole warp.
  SWITCHYARD_DEVICE void scan(int num_pairs) { warp_exclusive_scan(first, num_pairs); }

  SWITCHYARD_DEVICE uint32_t total(int num_pairs) const { return first[num_pairs]; }
  SWITCHYARD_DEVICE uint32_t count(int pair_idx) const { return first[pair_idx + 1] - first[pair_idx]; }

  // Returns the pair that item `item_idx` belongs to.
  SWITCHYARD_DEVICE int find(uint32_t item_idx, int num_pairs) const {
    int low = 0, high = num_pairs - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= item_idx)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// Neighbouring numbers are of warps in different blocks, so that few rows spread over all multiprocessors.
SWITCHYARD_DEVICE uint32_t warp_of_launch() {
  return static_cast<uint32_t>(target::warp_idx() * target::num_blocks() + target::block_idx());
}

// The first of the rows that for_each_row() deals to this warp. If the warp gets none, it is any other.
SWITCHYARD_DEVICE int first_row_of_warp(uint32_t num_items) {
  return num_items == 0 ? 0 : static_cast<int>(warp_of_launch() % num_items);
}

// Deals `num_items` rows to all warps of the launch; with few rows several warps share one. Calls
// work(item_idx, worker_idx, num_workers), where worker_idx numbers the threads that share the row.
template <typename Work>
SWITCHYARD_DEVICE void for_each_row(uint32_t num_items, Work work) {
  constexpr uint32_t kMaxWarpsPerRow = kEpKernelSizes.max_warps_per_row;
  const uint32_t num_warps = static_cast<uint32_t>(target::num_warps() * target::num_blocks());
  uint32_t warps_per_row = num_items == 0 ? 1 : num_warps / num_items;
  if (warps_per_row < 1) warps_per_row = 1;
  if (warps_per_row > kMaxWarpsPerRow) warps_per_row = kMaxWarpsPerRow;
  const uint32_t num_units = num_items * warps_per_row;  // at most num_items or num_warps, whichever is more
  for (uint32_t unit = warp_of_launch(); unit < num_units; unit += num_warps) {
    work(unit % num_items, static_cast<int>(unit / num_items) * kWarpSize + target::lane_idx(),
         static_cast<int>(warps_per_row) * kWarpSize);
    if (num_units - unit <= num_warps) break;  // the next unit may exceed 32 bits
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
