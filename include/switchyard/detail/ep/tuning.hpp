// The numbers of the expert-parallel kernels: how a launch is cut into blocks and threads, the limits by
// which the protocol is chosen where the caller leaves it open, and the sizes that are compiled
// into the kernels. Plain structs that can be compared and printed.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

struct EpTuning {
  int num_threads;        // of a block
  int num_fewer_threads;  // of a block, if it has few tokens, or if blocks of num_threads do not all fit at
                          // once
  int few_tokens;  // of a block: with at most so many, barriers of fewer threads gain more than warps do
  int num_blocks;  // of each rank; 0: the multiprocessors of its device, shared by the ranks on it

  friend constexpr bool operator==(const EpTuning&, const EpTuning&) = default;
};

// The emulator has no multiprocessors, and each of its threads is a fiber.
inline constexpr EpTuning kHostEpTuning = {
    .num_threads = 64, .num_fewer_threads = 64, .few_tokens = 0, .num_blocks = 4};
inline constexpr EpTuning kCudaEpTuning = {
    .num_threads = 1024, .num_fewer_threads = 512, .few_tokens = 2, .num_blocks = 0};

inline std::string to_string(const EpTuning& tuning) {
  return std::to_string(tuning.num_threads) + " threads" +
         (tuning.num_fewer_threads < tuning.num_threads
              ? ", or " + std::to_string(tuning.num_fewer_threads) + " if those do not fit or have at most " +
                    std::to_string(tuning.few_tokens) + " tokens"
              : "") +
         (tuning.num_blocks > 0 ? ", " + std::to_string(tuning.num_blocks) + " blocks of each rank"
                                : ", a block per multiprocessor, shared by the ranks on it");
}

// The limits by which the host chooses between two ways (runtime/ep/ep_config.cpp).
struct EpLimits {
  // If more ranks than this must have exchanged counts before the first of so few rows moves, the slotted
  // protocol, which sends at once, is faster (docs/performance.md, "Many ranks").
  int max_direct_ranks = 32;
  int max_slotted_tokens = 4;  // of each rank
  // With so few tokens of each rank it takes less to store scales one by one, in a tensor that interleaves
  // rows, than to wait for all rows, fetch their scales, and store these in whole lines.
  int max_tokens_sending_scales = 256;
  // Where there is no memory for the worst case, create() says what so many times an even share would take.
  double suggested_capacity_factor = 2;

  friend constexpr bool operator==(const EpLimits&, const EpLimits&) = default;
};
inline constexpr EpLimits kEpLimits;

// The sizes that are compiled into the kernels, for both targets.
struct EpKernelSizes {
  int max_token_stages = 16;     // direct dispatch: of a block, if so many fit
  int max_row_numbers = 1024;    // direct dispatch: rows whose numbers a block keeps in shared memory
  int prefetched_ids = 8;        // direct dispatch: ids that each lane of the ranker loads ahead
  int max_scale_bands = 4;       // direct dispatch_wait: of a block, in flight at once
  int message_stages = 2;        // slotted dispatch: of a block
  int first_rows_in_flight = 8;  // combine, bf16: the first batch is larger because the accumulators are
  int next_rows_in_flight = 4;   // not live yet
  int fp8_rows_in_flight = 8;    // combine, fp8: rows of a warp's stage
  int max_warps_per_row = 32;    // warps that share a row if there are few rows

  friend constexpr bool operator==(const EpKernelSizes&, const EpKernelSizes&) = default;
};
inline constexpr EpKernelSizes kEpKernelSizes;

inline std::string to_string(const EpKernelSizes& sizes) {
  return "up to " + std::to_string(sizes.max_token_stages) + " stages of tokens and " +
         std::to_string(sizes.max_scale_bands) + " bands of scales; combine loads " +
         std::to_string(sizes.first_rows_in_flight) + ", then " + std::to_string(sizes.next_rows_in_flight) +
         " rows at a time (fp8: " + std::to_string(sizes.fp8_rows_in_flight) + ")";
}

}  // namespace switchyard
