// The words of tile kernels on the CPU. Boxes are stored in shared memory without a swizzle.
#pragma once

#include <cmath>

#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/target/tensor_shape.hpp"

namespace switchyard::inline host_target::target {

inline constexpr bool kHasMatrixUnit = true;  // plain loops
inline constexpr size_t kTileAlignment = alignof(Vec16);

struct TensorMap {
  TensorShape shape;
};

inline Result<TensorMap> make_tensor_map(const TensorShape& shape) { return TensorMap{shape}; }
inline void prefetch_tensor_map(const TensorMap&) {}

// As tensor_load, where only the first `num_heads` heads of the box are used. The others may be on their way:
// they are loaded in weak memory, where that is no error, as on a GPU. Otherwise they are NaNs, by which it
// shows if something depends on them.
inline void tensor_load_first(void* shared_dst, const TensorMap& map, int column, int head, int row,
                              uint32_t num_heads, TransferBarrier& barrier, CacheHint,
                              Where where = Where::current()) {
  constexpr uint32_t kRowBytes = kBoxColumns * 2;
  const TensorShape& shape = map.shape;
  const uint32_t first_column = static_cast<uint32_t>(column);
  const uint32_t bytes_left = first_column < shape.columns ? (shape.columns - first_column) * 2 : 0;
  const uint32_t num_bytes = bytes_left < kRowBytes ? bytes_left : kRowBytes;
  auto* dst = static_cast<std::byte*>(shared_dst);
  for (uint32_t r = 0; r < shape.box_rows; ++r)
    for (uint32_t h = 0; h < shape.box_heads; ++h, dst += kRowBytes) {
      const uint64_t src_row = static_cast<uint64_t>(row) + r, src_head = static_cast<uint64_t>(head) + h;
      const bool is_there = src_row < shape.rows && src_head < shape.heads;
      const uint32_t num_there = is_there ? num_bytes : 0;  // zeros follow
      const std::byte* src =
          num_there == 0 ? nullptr
                         : static_cast<const std::byte*>(shape.base) + src_row * shape.row_stride_bytes +
                               src_head * shape.head_stride_bytes + uint64_t{first_column} * 2;
      if (detail::is_weak()) [[unlikely]] {
        if (num_there > 0) emulator::weak_bulk_load(dst, src, num_there, &barrier.word_, where);
        if (num_there < kRowBytes)
          emulator::weak_bulk_load(dst + num_there, nullptr, kRowBytes - num_there, &barrier.word_, where);
        continue;
      }
      if (h >= num_heads) {
        std::memset(dst, 0xff, kRowBytes);
        continue;
      }
      if (num_there > 0) std::memcpy(dst, src, num_there);
      if (num_there < kRowBytes) std::memset(dst + num_there, 0, kRowBytes - num_there);
    }
  if (!detail::is_weak())
    emulator::transfer_complete(&barrier.word_, shape.box_rows * shape.box_heads * kRowBytes);
}
// Loads the box that begins at these coordinates, with zeros past the tensor's end. The load completes on
// `barrier` with the bytes of a whole box.
inline void tensor_load(void* shared_dst, const TensorMap& map, int column, int head, int row,
                        TransferBarrier& barrier, CacheHint keep, Where where = Where::current()) {
  tensor_load_first(shared_dst, map, column, head, row, map.shape.box_heads, barrier, keep, where);
}

// Where a 16-byte unit of a row of a box lies in that row.
inline int unit_in_row(int /*row*/, int unit) { return unit; }

// A load of shared memory by the matrix unit.
inline Vec16 matrix_ld_16(const void* p, Where where = Where::current()) {
  if (!detail::is_weak()) [[likely]]
    return *static_cast<const Vec16*>(p);
  Vec16 value;
  emulator::weak_matrix_load(
      {p, sizeof(Vec16), WordKind::kLoad, Order::kRelaxed, Scope::kBlock, false, where}, &value);
  return value;
}

// What is approximate on a GPU is exact here.
inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
// NaN if either is NaN.
inline float min_or_nan(float a, float b) { return a < b || a != a ? a : b; }
inline float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }

// Every block is a cluster of its own: kernels that share loads between blocks do not share them here.
inline constexpr bool kHasClusters = false;

inline uint32_t cluster_block_idx() { return 0; }
inline void sync_cluster(Where where = Where::current()) { sync_block(where); }
inline void tensor_load_to_pair(void* shared_dst, const TensorMap& map, int column, int head, int row,
                                TransferBarrier& barrier, CacheHint keep, Where where = Where::current()) {
  tensor_load(shared_dst, map, column, head, row, barrier, keep, where);
}
inline void arrive_in_cluster(TransferBarrier& barrier, uint32_t /*cluster_block*/) { barrier.arrive(); }

// Registers are not limited on the host.
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace switchyard::inline host_target::target
