// What a tensor map is made from, on both targets: rows of heads of columns, and the box that one load reads.
#pragma once

#include <cstdint>

namespace switchyard {

inline constexpr uint32_t kBoxColumns = 64;  // of bf16: 128 bytes, a row of a panel in shared memory

struct TensorShape {
  const void* base = nullptr;  // 16-byte aligned
  uint32_t columns = 0;        // a multiple of 8, contiguous
  uint32_t heads = 0;
  uint32_t rows = 0;
  uint64_t head_stride_bytes = 0;  // multiples of 16
  uint64_t row_stride_bytes = 0;
  uint32_t box_heads = 1;  // in shared memory a box is [box_rows][box_heads][kBoxColumns]; each at most 256
  uint32_t box_rows = 1;
  uint32_t l2_bytes = 256;  // that the L2 loads at least, where it has not got a line: 0, 64, 128 or 256
};

// How long the L2 should keep the lines of a load.
enum class CacheHint { kKeep, kStream, kNormal };

}  // namespace switchyard
