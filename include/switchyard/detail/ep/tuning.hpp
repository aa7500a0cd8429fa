// How expert-parallel kernels are launched where the caller leaves it open: a few numbers that can be
// printed.
#pragma once

#include <string>

namespace switchyard {

struct EpTuning {
  int num_threads;        // of a block
  int num_fewer_threads;  // of a block, if blocks of num_threads do not all fit at once
  int num_blocks;         // of each rank; 0: the multiprocessors of its device, shared by the ranks on it

  friend constexpr bool operator==(const EpTuning&, const EpTuning&) = default;
};

// The emulator has no multiprocessors, and each of its threads is a fiber.
inline constexpr EpTuning kHostEpTuning = {.num_threads = 64, .num_fewer_threads = 64, .num_blocks = 4};
inline constexpr EpTuning kCudaEpTuning = {.num_threads = 1024, .num_fewer_threads = 512, .num_blocks = 0};

inline std::string to_string(const EpTuning& tuning) {
  return std::to_string(tuning.num_threads) + " threads" +
         (tuning.num_fewer_threads < tuning.num_threads
              ? ", or " + std::to_string(tuning.num_fewer_threads) + " if those do not fit"
              : "") +
         (tuning.num_blocks > 0 ? ", " + std::to_string(tuning.num_blocks) + " blocks of each rank"
                                : ", a block per multiprocessor, shared by the ranks on it");
}

}  // namespace switchyard
