// What the calls of a step check of the tensors that they are given.
#pragma once

#include <cstdint>

#include "switchyard/status.hpp"

namespace switchyard {

inline Status check_pointer(const char* call, const char* name, const void* pointer) {
  if (pointer == nullptr) return invalid_argument("%s: %s is null", call, name);
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
    return invalid_argument("%s: %s is %p; it must be aligned to 16 bytes", call, name, pointer);
  return Status();
}

// 0 stands for rows without gaps.
inline Status check_stride(const char* call, const char* name, uint64_t stride_bytes, uint32_t row_bytes,
                           uint32_t multiple) {
  if (stride_bytes == 0) return Status();
  if (stride_bytes >= row_bytes && stride_bytes <= INT32_MAX && stride_bytes % multiple == 0) return Status();
  return invalid_argument("%s: %s is %llu; it must be 0, or %u..%d and a multiple of %u", call, name,
                          static_cast<unsigned long long>(stride_bytes), row_bytes, INT32_MAX, multiple);
}

}  // namespace switchyard
