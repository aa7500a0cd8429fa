// The vocabulary on CUDA; sm_80 and later. What an older architecture lacks has a slower word there. Inline
// assembly is allowed here, in cuda_copies.cuh and in cuda_matrix*.cuh only. target/host.hpp says what each
// word means.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cuda/atomic>
#include <cuda/ptx>
#include <utility>
#include <vector>

#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/target/cuda_error.hpp"
#include "switchyard/detail/target/launch_turn.hpp"
#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::inline SWITCHYARD_TARGET::target {

// Threads and blocks.
SWITCHYARD_DEVICE int thread_idx() { return static_cast<int>(threadIdx.x); }
SWITCHYARD_DEVICE int num_threads() { return static_cast<int>(blockDim.x); }
SWITCHYARD_DEVICE int block_idx() { return static_cast<int>(blockIdx.x); }
SWITCHYARD_DEVICE int num_blocks() { return static_cast<int>(gridDim.x); }

template <typename T>
SWITCHYARD_DEVICE T& shared_storage() {
  extern __shared__ __align__(1024) unsigned char switchyard_shared_memory[];
  return *reinterpret_cast<T*>(switchyard_shared_memory);
}

SWITCHYARD_DEVICE uint64_t shared_bytes() {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

// Barriers.
SWITCHYARD_DEVICE void sync_block() { __syncthreads(); }
SWITCHYARD_DEVICE bool sync_block_any(bool value) { return __syncthreads_or(value) != 0; }
SWITCHYARD_DEVICE void sync_warp() { __syncwarp(); }
SWITCHYARD_DEVICE void named_barrier_sync(uint32_t barrier_idx, uint32_t num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier_idx), "r"(num_threads) : "memory");
}
SWITCHYARD_DEVICE void named_barrier_arrive(uint32_t barrier_idx, uint32_t num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier_idx), "r"(num_threads) : "memory");
}

// Warp collectives.
template <typename T>
SWITCHYARD_DEVICE T shuffle(T value, int src_lane) {
  return __shfl_sync(0xffffffffu, value, src_lane);
}
template <typename T>
SWITCHYARD_DEVICE T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
template <typename T>
SWITCHYARD_DEVICE T shuffle_up(T value, int delta) {
  return __shfl_up_sync(0xffffffffu, value, delta);
}
SWITCHYARD_DEVICE uint32_t ballot(bool value) { return __ballot_sync(0xffffffffu, value); }

SWITCHYARD_DEVICE uint32_t match_any(uint32_t value) { return __match_any_sync(0xffffffffu, value); }

SWITCHYARD_DEVICE int popcount(uint32_t mask) { return __popc(mask); }
SWITCHYARD_DEVICE float add_product(float sum, float a, float b) { return __fadd_rn(sum, __fmul_rn(a, b)); }

SWITCHYARD_DEVICE float divide(float dividend, float divisor) { return __fdiv_rn(dividend, divisor); }
// a * b must be exact, so that one rounding is as good as two.
SWITCHYARD_DEVICE float add_exact_product(float sum, float a, float b) { return __fmaf_rn(a, b, sum); }
// Neither argument may be NaN.
SWITCHYARD_DEVICE float min_f32(float a, float b) { return fminf(a, b); }
SWITCHYARD_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
SWITCHYARD_DEVICE uint32_t max_u16x2(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return __vmaxu2(a, b);
#else
  uint32_t max;
  asm("max.u16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
  return max;
#endif
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
template <typename Code>
SWITCHYARD_DEVICE uint16_t to_codes(float first, float second) {
  return static_cast<uint16_t>(to_minifloat<Code>(first).bits | to_minifloat<Code>(second).bits << 8);
}
SWITCHYARD_DEVICE uint16_t to_e4m3x2(float first, float second) { return to_codes<e4m3>(first, second); }
SWITCHYARD_DEVICE uint16_t to_e5m2x2(float first, float second) { return to_codes<e5m2>(first, second); }
SWITCHYARD_DEVICE void from_e4m3x2(uint16_t codes, float& first, float& second) {
  first = to_float(e4m3{static_cast<uint8_t>(codes)});
  second = to_float(e4m3{static_cast<uint8_t>(codes >> 8)});
}
#else
SWITCHYARD_DEVICE uint16_t to_e4m3x2(float first, float second) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}
SWITCHYARD_DEVICE void from_e4m3x2(uint16_t codes, float& first, float& second) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(first), "=f"(second)
      : "r"(halves));
}
SWITCHYARD_DEVICE uint16_t to_e5m2x2(float first, float second) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}
#endif
SWITCHYARD_DEVICE uint32_t to_bf16x2(float first, float second) {
  if (first != first || second != second)  // the instruction would return another NaN
    return to_bf16(first).bits | static_cast<uint32_t>(to_bf16(second).bits) << 16;
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}
// The mask must not be 0.
SWITCHYARD_DEVICE int lowest_set_bit(uint32_t mask) { return __ffs(static_cast<int>(mask)) - 1; }

// Memory that several threads share.
namespace detail {
template <Scope kScope>
inline constexpr cuda::thread_scope kThreadScope = kScope == Scope::kBlock    ? cuda::thread_scope_block
                                                   : kScope == Scope::kDevice ? cuda::thread_scope_device
                                                                              : cuda::thread_scope_system;
template <Order kOrder>
inline constexpr cuda::memory_order kMemoryOrder = kOrder == Order::kRelaxed   ? cuda::memory_order_relaxed
                                                   : kOrder == Order::kAcquire ? cuda::memory_order_acquire
                                                   : kOrder == Order::kRelease ? cuda::memory_order_release
                                                                               : cuda::memory_order_acq_rel;
}  // namespace detail

template <Order kOrder, Scope kScope, typename T>
SWITCHYARD_DEVICE T load(const T* p) {
  return cuda::atomic_ref<T, detail::kThreadScope<kScope>>(*const_cast<T*>(p))
      .load(detail::kMemoryOrder<kOrder>);
}
template <Order kOrder, Scope kScope, typename T>
SWITCHYARD_DEVICE void store(T* p, T value) {
  cuda::atomic_ref<T, detail::kThreadScope<kScope>>(*p).store(value, detail::kMemoryOrder<kOrder>);
}
template <Order kOrder, Scope kScope, typename T>
SWITCHYARD_DEVICE T fetch_add(T* p, T value) {
  // An atomic_ref would hide from the compiler that the address is in shared memory.
  if constexpr (kOrder == Order::kRelaxed && kScope == Scope::kBlock && sizeof(T) == sizeof(uint32_t))
    return atomicAdd_block(p, value);
  return cuda::atomic_ref<T, detail::kThreadScope<kScope>>(*p).fetch_add(value, detail::kMemoryOrder<kOrder>);
}
template <Order kOrder, Scope kScope, typename T>
SWITCHYARD_DEVICE bool compare_exchange(T* p, T expected, T desired) {
  return cuda::atomic_ref<T, detail::kThreadScope<kScope>>(*p).compare_exchange_strong(
      expected, desired, detail::kMemoryOrder<kOrder>, cuda::memory_order_acquire);
}
template <Order kOrder, Scope kScope>
SWITCHYARD_DEVICE uint32_t fetch_inc_wrap(uint32_t* p, uint32_t last) {
  static_assert(kScope == Scope::kDevice);
  if constexpr (kOrder == Order::kRelaxed) return atomicInc(p, last);
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(last) : "memory");
  return old;
}

// Weak accesses.
template <typename T>
SWITCHYARD_DEVICE T ld(const T* p) {
  return *p;
}
template <typename T>
SWITCHYARD_DEVICE void st(T* p, T value) {
  *p = value;
}
SWITCHYARD_DEVICE Vec16 ld_16(const void* p) {
  const uint4 value = *static_cast<const uint4*>(p);
  return Vec16{{value.x, value.y, value.z, value.w}};
}
SWITCHYARD_DEVICE void st_16(void* p, Vec16 value) {
  *static_cast<uint4*>(p) = make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}

SWITCHYARD_DEVICE void copy_row(void* dst, const void* src, uint64_t num_bytes, int lane_idx, int num_lanes) {
  constexpr int kInFlight = 8;  // loads issued before the first store
  const uint32_t num_vectors = static_cast<uint32_t>(num_bytes / sizeof(uint4));
  uint32_t i = static_cast<uint32_t>(lane_idx);
  const uint32_t stride = static_cast<uint32_t>(num_lanes);
  for (; i + (kInFlight - 1) * stride < num_vectors; i += kInFlight * stride) {
    uint4 values[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) values[j] = static_cast<const uint4*>(src)[i + j * stride];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) static_cast<uint4*>(dst)[i + j * stride] = values[j];
  }
  for (; i < num_vectors; i += stride) static_cast<uint4*>(dst)[i] = static_cast<const uint4*>(src)[i];
}

SWITCHYARD_DEVICE void check_may_wait_for_peer() {}

// Time and waiting.
SWITCHYARD_DEVICE uint64_t now_ns() { return cuda::ptx::get_sreg_globaltimer(); }

template <typename Ready>
SWITCHYARD_DEVICE bool wait_until(Ready&& ready, uint64_t deadline_ns) {
  constexpr uint32_t kPollsPerClockRead = 32;
  for (uint32_t num_polls = 1; !ready(); ++num_polls)
    if (deadline_ns != kNoDeadline && num_polls % kPollsPerClockRead == 0 && now_ns() >= deadline_ns)
      return false;
  return true;
}

inline cudaError_t current_device_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(&value, attribute, device) : error;
}

// Sets the attributes of a kernel before it is launched. They do not depend on the launch, so threads that
// launch the kernel with different sizes do not overwrite each other's attributes. A thread does it once for
// each device: the calls take microseconds.
inline cudaError_t prepare_kernel(const void* kernel) {
  thread_local std::vector<std::pair<const void*, int>> prepared;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::pair<const void*, int> key(kernel, device);
  if (std::find(prepared.begin(), prepared.end(), key) != prepared.end()) return cudaSuccess;
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  int max_shared_bytes = 0;
  if (error == cudaSuccess)
    error = current_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, max_shared_bytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 max_shared_bytes - static_cast<int>(attributes.sharedSizeBytes));
  // All our kernels have the same split between L1 and shared memory. A multiprocessor changes it only when
  // idle: a block that waited for that while resident blocks wait for it would wait forever.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess) prepared.push_back(key);
  return error;
}

// A kernel and the dynamic shared memory of its launch.
struct ResidentKernel {
  template <typename Parameters>
  ResidentKernel(void (*kernel_in)(Parameters), uint64_t shared_bytes_in)
      : kernel(reinterpret_cast<const void*>(kernel_in)), shared_bytes(shared_bytes_in) {}

  const void* kernel;
  uint64_t shared_bytes;
};

// Returns how many blocks of `num_threads` can be resident on the current device at once, whichever of the
// kernels they run.
template <size_t kNumKernels>
Result<int> max_resident_blocks(const ResidentKernel (&kernels)[kNumKernels], int num_threads) {
  int num_multiprocessors = 0;
  cudaError_t error = current_device_attribute(cudaDevAttrMultiProcessorCount, num_multiprocessors);
  int fewest_blocks = INT_MAX;
  for (const ResidentKernel& candidate : kernels) {
    int num_blocks = 0;
    if (error == cudaSuccess) error = prepare_kernel(candidate.kernel);
    if (error == cudaSuccess)
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&num_blocks, candidate.kernel, num_threads,
                                                            candidate.shared_bytes);
    if (num_blocks < fewest_blocks) fewest_blocks = num_blocks;
  }
  if (error == cudaSuccess) return num_multiprocessors * fewest_blocks;
  cudaGetLastError();  // a failed call must not fail the next one too
  return explain_cuda_error(error, internal_error("occupancy of the kernels: %s", cudaGetErrorString(error)));
}

// Launches `kernel(parameters)` on a stream of this target.
template <typename Parameters>
Status launch(const char* name, void (*kernel)(Parameters), const LaunchShape& shape, StreamHandle stream,
              const Parameters& parameters) {
  SWITCHYARD_RETURN_IF_ERROR(check_launch_shape(name, shape));
  const LaunchTurn turn;
  cudaError_t error = prepare_kernel(reinterpret_cast<const void*>(kernel));
  cudaLaunchAttribute attributes[2]{};
  unsigned num_attributes = 0;
  int compute_major = 0;
  if (error == cudaSuccess && shape.programmatic_dependent)
    error = current_device_attribute(cudaDevAttrComputeCapabilityMajor, compute_major);
  if (compute_major >= 9) {  // others launch it once its predecessor has ended, which is right, too
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster_blocks > 1) {
    attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[num_attributes++].val.clusterDim = {shape.cluster_blocks, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.num_blocks);
  config.blockDim = dim3(shape.num_threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, kernel, parameters);
  if (error == cudaSuccess) return Status();
  cudaGetLastError();  // a failed call must not fail the next one too
  return explain_cuda_error(
      error, internal_error("launch of %s (%u blocks of %u threads, %llu bytes of shared memory): %s", name,
                            shape.num_blocks, shape.num_threads,
                            static_cast<unsigned long long>(shape.shared_bytes), cudaGetErrorString(error)));
}

}  // namespace switchyard::inline SWITCHYARD_TARGET::target

#include "switchyard/detail/target/cuda_copies.cuh"
#include "switchyard/detail/target/words.hpp"
