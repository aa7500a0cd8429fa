// The words of tile kernels on CUDA: tensor maps and tensor loads, the matrix unit, and the words of a
// warpgroup's softmax. Assembly is allowed here and in the two files beside it only.
#pragma once

#include <cuda.h>

#include "switchyard/detail/target/cuda_matrix_unit.cuh"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/target/tensor_shape.hpp"

namespace switchyard::inline SWITCHYARD_TARGET::target {

// Code for any other architecture has no matrix unit that these words know: its tile kernels are empty, and
// Device::check_matrix_unit() refuses to launch them.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasMatrixUnit = false;
#else
inline constexpr bool kHasMatrixUnit = true;
#endif

inline constexpr size_t kTileAlignment = 1024;  // of a tile in shared memory, for the swizzle

// A tensor as the copy engine sees it. It must be a kernel parameter.
struct TensorMap {
  CUtensorMap map;
};

// In shared memory the 16-byte units of each row of a box are permuted by the row (128-byte swizzle).
inline Result<TensorMap> make_tensor_map(const TensorShape& shape) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();  // a failed call must not fail the next one too
    return explain_cuda_error(
        error, unavailable("the CUDA driver has no cuTensorMapEncodeTiled: %s", cudaGetErrorString(error)));
  }
  const cuuint64_t sizes[3] = {shape.columns, shape.heads, shape.rows};
  const cuuint64_t strides[2] = {shape.head_stride_bytes, shape.row_stride_bytes};
  const cuuint32_t box[3] = {kBoxColumns, shape.box_heads, shape.box_rows};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUtensorMapL2promotion promotion = shape.l2_bytes == 0     ? CU_TENSOR_MAP_L2_PROMOTION_NONE
                                           : shape.l2_bytes == 64  ? CU_TENSOR_MAP_L2_PROMOTION_L2_64B
                                           : shape.l2_bytes == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                                                   : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  TensorMap map{};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(shape.base), sizes, strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return internal_error(
      "tensor map of %u columns, %u heads, %u rows (strides %llu, %llu bytes; boxes of %u heads, %u rows): "
      "CUresult %d",
      shape.columns, shape.heads, shape.rows, static_cast<unsigned long long>(shape.head_stride_bytes),
      static_cast<unsigned long long>(shape.row_stride_bytes), shape.box_heads, shape.box_rows,
      static_cast<int>(result));
}

SWITCHYARD_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

SWITCHYARD_DEVICE void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The L2's policy for the lines of a load: to evict them last, first, or as any other.
SWITCHYARD_DEVICE constexpr uint64_t l2_policy(CacheHint hint) {
  return hint == CacheHint::kKeep     ? 0x14f0000000000000ull
         : hint == CacheHint::kStream ? 0x12f0000000000000ull
                                      : 0x1000000000000000ull;
}

// Loads the box that begins at these coordinates, with zeros past the tensor's end. The load completes on
// `barrier` with the bytes of a whole box. `keep` says how long the L2 should hold the lines.
SWITCHYARD_DEVICE void tensor_load(void* shared_dst, const TensorMap& map, int column, int head, int row,
                                   TransferBarrier& barrier, CacheHint keep) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared_dst)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(head), "r"(row), "l"(l2_policy(keep))
      : "memory");
}

// The same where only the first `num_heads` heads of the box are used: the copy engine loads all of it.
SWITCHYARD_DEVICE void tensor_load_first(void* shared_dst, const TensorMap& map, int column, int head,
                                         int row, uint32_t /*num_heads*/, TransferBarrier& barrier,
                                         CacheHint keep) {
  tensor_load(shared_dst, map, column, head, row, barrier, keep);
}

// Where a 16-byte unit of a row of a box lies in that row: the swizzle permutes them.
SWITCHYARD_DEVICE int unit_in_row(int row, int unit) { return unit ^ row % 8; }
// Two e4m3 codes, the lower half of a word, as two fp16, which holds them exactly.
SWITCHYARD_DEVICE uint32_t f16x2_of_e4m3(uint32_t codes) {
  uint32_t numbers;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(numbers) : "h"(static_cast<uint16_t>(codes)));
  return numbers;
}
// Two fp16, the first in the lower half, rounded to nearest even.
SWITCHYARD_DEVICE uint32_t pack_f16x2(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}
// The bytes of a word in the order that the selector's digits say, the lowest first.
SWITCHYARD_DEVICE uint32_t permute_bytes(uint32_t word, uint32_t selector) {
  return __byte_perm(word, 0, selector);
}

// The blocks of a cluster (LaunchShape::cluster_blocks) can access each other's shared memory.
inline constexpr bool kHasClusters = true;

SWITCHYARD_DEVICE uint32_t cluster_block_idx() {
  uint32_t idx;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(idx));
  return idx;
}
// As sync_block, for all threads of the cluster that have not exited.
SWITCHYARD_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}
// As tensor_load, but multicast: the box is written at the same address in both blocks of a pair, and
// completes on the barrier at the same address in each.
SWITCHYARD_DEVICE void tensor_load_to_pair(void* shared_dst, const TensorMap& map, int column, int head,
                                           int row, TransferBarrier& barrier, CacheHint keep) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(shared_dst)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(head), "r"(row),
      "h"(static_cast<uint16_t>(3)), "l"(l2_policy(keep))
      : "memory");
}
// Arrives at the barrier that another block of the cluster has at the same address.
SWITCHYARD_DEVICE void arrive_in_cluster(TransferBarrier& barrier, uint32_t cluster_block) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(shared_address(&barrier)),
      "r"(cluster_block)
      : "memory");
}

// Set the registers per thread from here on; all warps of a warpgroup must call the same one.
template <int kRegisters>
SWITCHYARD_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
SWITCHYARD_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

SWITCHYARD_DEVICE uint32_t matrix_address(const void* tile) { return (shared_address(tile) & 0x3ffff) >> 4; }
// The matrix unit's descriptor of a tile in shared memory. `group_stride` is the distance from 8 rows to the
// next 8, `panel_stride` that from 64 columns to the next 64 (for a second operand whose rows run along the
// inner dimension).
SWITCHYARD_DEVICE uint64_t matrix_operand(const void* tile, uint32_t group_stride, uint32_t panel_stride) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(group_stride >> 4) << 32 |
         static_cast<uint64_t>(panel_stride >> 4) << 16 | matrix_address(tile);
}
// The same in two parts, for a tile that is found long before it is multiplied: where it lies, in units of 16
// bytes, to which others may be added; and the descriptor of what lies there.
SWITCHYARD_DEVICE uint64_t matrix_operand_at(uint32_t address, uint32_t group_stride) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(group_stride >> 4) << 32 | address;
}

// Products are started, committed in groups, and waited for. matrix_fence() must stand between other writes
// to the registers that they use and their start.
SWITCHYARD_DEVICE void matrix_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SWITCHYARD_DEVICE void matrix_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
SWITCHYARD_DEVICE void matrix_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to registers that a product uses across this point.
template <int kSize>
SWITCHYARD_DEVICE void hold_registers(float (&values)[kSize]) {
  SWITCHYARD_UNROLL
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kSize>
SWITCHYARD_DEVICE void hold_registers(uint32_t (&values)[kSize]) {
  SWITCHYARD_UNROLL
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

SWITCHYARD_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SWITCHYARD_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SWITCHYARD_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Within one unit in the last place; 0 of infinity.
SWITCHYARD_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// NaN if either is NaN.
SWITCHYARD_DEVICE float min_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
SWITCHYARD_DEVICE float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// Two bf16, the first in the lower half, rounded to nearest even.
SWITCHYARD_DEVICE uint32_t pack_bf16x2(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// Two bf16 times two others, each rounded to nearest even.
SWITCHYARD_DEVICE uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Stores four 8 x 8 matrices of bf16 as a product leaves them, a word of each in every lane. Lane i has the
// address of row i % 8 of matrix i / 8: 16 bytes of shared memory.
SWITCHYARD_DEVICE void store_matrices(void* shared_row, const Vec16& words) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared_row)),
      "r"(words.words[0]), "r"(words.words[1]), "r"(words.words[2]), "r"(words.words[3])
      : "memory");
}

// Loads four 8 x 8 matrices of two-byte elements, transposed: lane i gets elements 2 (i % 4) and 2 (i % 4) +
// 1 of column i / 4 of each, a word of each. It has the address of row i % 8 of matrix i / 8.
SWITCHYARD_DEVICE Vec16 load_matrices_transposed(const void* shared_row) {
  Vec16 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.words[0]), "=r"(words.words[1]), "=r"(words.words[2]), "=r"(words.words[3])
               : "r"(shared_address(shared_row))
               : "memory");
  return words;
}

// Adds the product of 16 x 16 and 16 x 8 fp16 to 16 x 8 sums, by one warp, all in registers: lane i has of
// rows i / 4 and 8 + i / 4 of the first operand columns 2 (i % 4), 2 (i % 4) + 1 (words 0 and 1) and those 8
// further (2 and 3), the same rows of column i / 4 of the second (one word each), and columns 2 (i % 4),
// 2 (i % 4) + 1 of rows i / 4 and 8 + i / 4 of the sums.
SWITCHYARD_DEVICE void multiply_16x8(float (&sums)[4], const uint32_t (&first)[4], uint32_t upper,
                                     uint32_t lower) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(upper), "r"(lower));
}

namespace detail {
// Exchanges the words off the diagonal with the lane kStep away.
template <int kStep>
SWITCHYARD_DEVICE void exchange_words(Vec16& words) {
  const bool is_upper = (lane_idx() & kStep) != 0;
  SWITCHYARD_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i & kStep) continue;
    const uint32_t other = shuffle_xor(is_upper ? words.words[i] : words.words[i + kStep], kStep);
    (is_upper ? words.words[i] : words.words[i + kStep]) = other;
  }
}
}  // namespace detail

// Transposes four words of four neighbouring lanes. These hold the rows of a product pair by pair; afterwards
// each lane has eight contiguous columns.
SWITCHYARD_DEVICE void transpose_quad(Vec16& words) {
  detail::exchange_words<1>(words);
  detail::exchange_words<2>(words);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET::target
