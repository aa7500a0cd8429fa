// What `switchyard bench ep --repeat-check` puts behind every step: is the output what it must be? A hash on
// the device answers, so that replays follow each other with nothing of the host in between.
#pragma once

#include <cstdint>
#include <cstring>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// Lives in device memory. The kernel leaves `sum` and `blocks_done` as it found them, at zero.
struct OutputCheck {
  uint64_t expected;       // output_hash() of the right output
  uint64_t num_checked;    // outputs so far
  uint64_t num_different;  // of those, with another hash
  uint64_t sum;            // of the blocks that are done
  int32_t blocks_done;
};

// Hashes the output, then overwrites it and `scratch`: what the next step does not write cannot look right.
struct CheckOutputParams {
  OutputCheck* check;
  std::byte* output;
  uint64_t output_bytes;  // a multiple of 16, as all sizes and addresses here
  std::byte* scratch;     // what the step wrote on its way to the output; may be null
  uint64_t scratch_bytes;
};

inline constexpr uint32_t kOverwritten = 0xffffffffu;  // as bf16: not a number

// What one word adds to the hash. The sum does not depend on the order of the words, but on their places.
SWITCHYARD_HD constexpr uint64_t hash_of_word(uint64_t word, uint64_t word_idx) {
  uint64_t value = word + (word_idx + 1) * 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// On the host, of what an output must be.
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
