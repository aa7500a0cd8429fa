// What `switchyard bench ep --repeat-check` runs after every step: a kernel that hashes the output and
// compares it with the expected hash on the device, so that replays follow each other without the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// This struct lies in device memory. The kernel leaves `sum` and `blocks_done` at zero, as it found them.
struct OutputTally {
  uint64_t expected;       // output_hash() of the right output
  uint64_t num_checked;    // outputs so far
  uint64_t num_different;  // how many of those had another hash
  uint64_t sum;            // the hashes of the blocks that are done
  int32_t blocks_done;
};

// The kernel hashes the output, then overwrites it and `scratch`: memory that the next step fails to write
// cannot look right.
struct CheckOutputParams {
  OutputTally* check;
  std::byte* output;
  uint64_t output_bytes;  // a multiple of 16, as all sizes and addresses here
  std::byte* scratch;     // what the step wrote on its way to the output; may be null
  uint64_t scratch_bytes;
};

inline constexpr uint32_t kOverwritten = 0xffffffffu;  // as bf16: NaN

// What one word adds to the hash. The sum does not depend on the order of addition, but on the index of each
// word.
SWITCHYARD_HD constexpr uint64_t hash_of_word(uint64_t word, uint64_t word_idx) {
  uint64_t value = word + (word_idx + 1) * 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// The hash of the expected output, on the host.
inline uint64_t output_hash(const void* output, uint64_t output_bytes) {
  uint64_t sum = 0;
  for (uint64_t word_idx = 0; word_idx < output_bytes / sizeof(uint64_t); ++word_idx) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char*>(output) + word_idx * sizeof(word), sizeof(word));
    sum += hash_of_word(word, word_idx);
  }
  return sum;
}

}  // namespace switchyard
