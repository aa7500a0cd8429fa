// The words of tile kernels on the CPU. Boxes lie in shared memory as they are, without a swizzle.
#pragma once

#include "switchyard/target/target.hpp"
#include "switchyard/target/tensor_shape.hpp"

namespace switchyard::inline host_target::target {

inline constexpr size_t kTileAlignment = alignof(Vec16);

struct TensorMap {
  TensorShape shape;
};

inline Result<TensorMap> make_tensor_map(const TensorShape& shape) { return TensorMap{shape}; }
inline void prefetch_tensor_map(const TensorMap&) {}

// Brings the box that begins at these places; zeros for what lies past the tensor's end. Completes on
// `barrier` with the bytes of a whole box.
inline void tensor_load(void* shared_dst, const TensorMap& map, int column, int head, int row,
                        TransferBarrier& barrier, CacheHint, Where where = Where::current()) {
  constexpr uint32_t kRowBytes = kBoxColumns * 2;
  const TensorShape& shape = map.shape;
  auto* dst = static_cast<std::byte*>(shared_dst);
  for (uint32_t r = 0; r < shape.box_rows; ++r)
    for (uint32_t h = 0; h < shape.box_heads; ++h, dst += kRowBytes) {
      const uint64_t src_row = static_cast<uint64_t>(row) + r, src_head = static_cast<uint64_t>(head) + h;
      const bool is_there = src_row < shape.rows && src_head < shape.heads;
      const std::byte* src =
          is_there ? static_cast<const std::byte*>(shape.base) + src_row * shape.row_stride_bytes +
                         src_head * shape.head_stride_bytes + static_cast<uint64_t>(column) * 2
                   : nullptr;
      if (detail::is_weak()) [[unlikely]]
        emulator::weak_bulk_load(dst, src, kRowBytes, &barrier.word_, where);
      else if (is_there)
        std::memcpy(dst, src, kRowBytes);
      else
        std::memset(dst, 0, kRowBytes);
    }
  if (!detail::is_weak())
    emulator::transfer_complete(&barrier.word_, shape.box_rows * shape.box_heads * kRowBytes);
}

// A read of the matrix unit.
inline Vec16 matrix_ld_16(const void* p, Where where = Where::current()) {
  if (!detail::is_weak()) [[likely]]
    return *static_cast<const Vec16*>(p);
  Vec16 value;
  emulator::weak_matrix_load(
      {p, sizeof(Vec16), WordKind::kLoad, Order::kRelaxed, Scope::kBlock, false, where}, &value);
  return value;
}

// Threads have all the registers they want.
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace switchyard::inline host_target::target
