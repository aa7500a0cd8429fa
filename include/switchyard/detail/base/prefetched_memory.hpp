// Memory that a later launch reads, and that is asked for ahead of it.
#pragma once

#include <cstdint>

namespace switchyard {

struct PrefetchedMemory {
  const void* begin = nullptr;  // at a multiple of 16 bytes
  uint64_t bytes = 0;           // a multiple of 16; 0: none
};

// The first bytes of a tensor, at most so many.
constexpr PrefetchedMemory first_of(const void* tensor, uint64_t tensor_bytes, uint64_t most_bytes) {
  return {tensor, (tensor_bytes < most_bytes ? tensor_bytes : most_bytes) / 16 * 16};
}
static_assert(first_of(nullptr, 100, 1000).bytes == 96 && first_of(nullptr, 1000, 100).bytes == 96);
static_assert(first_of(nullptr, 15, 16).bytes == 0 && first_of(nullptr, 16, 0).bytes == 0);

}  // namespace switchyard
