// Writes arrays as NumPy .npy files (format 1.0).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "output.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::tools {

Status write_npy_bytes(const OutputName& name, const char* dtype, const std::vector<uint64_t>& shape,
                       const void* data, uint64_t bytes);

// NumPy has no bf16: it is stored as uint16, which a reader shifts left by 16 and views as float32.
inline const char* npy_dtype(bf16) { return "<u2"; }
inline const char* npy_dtype(uint8_t) { return "|u1"; }
inline const char* npy_dtype(int32_t) { return "<i4"; }
inline const char* npy_dtype(uint32_t) { return "<u4"; }
inline const char* npy_dtype(float) { return "<f4"; }

template <typename T>
Status write_npy(const OutputName& name, const std::vector<uint64_t>& shape, const std::vector<T>& values) {
  return write_npy_bytes(name, npy_dtype(T{}), shape, values.data(), values.size() * sizeof(T));
}

}  // namespace switchyard::tools
