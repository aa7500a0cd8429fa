// What both targets share: the types of the vocabulary, and the namespaces and macros of its words.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/macros.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/target.hpp"

// Kernels and everything they call are in an inline namespace per target, so that all of them can be linked
// into one binary: the host's, CUDA's, CUDA's with tracing code (sync/trace_slice.hpp), which the other
// kernels must not contain, and CUDA's whose wire is NVSHMEM (target/nvshmem_wire.cuh), in a plugin.
// SWITCHYARD_DEVICE marks a function that runs inside a kernel. SWITCHYARD_KERNEL marks the kernel itself and
// limits its registers so that blocks of 1024 threads fit; SWITCHYARD_KERNEL_OF(n) does so for blocks of n
// threads. SWITCHYARD_GRID_CONSTANT stands before a kernel parameter whose address is taken.
// SWITCHYARD_UNROLL stands before a loop whose array must stay in registers, SWITCHYARD_ROLLED before one
// whose code must stay small. SWITCHYARD_WHERE is the last parameter of a word that reports its caller to the
// emulator, and SWITCHYARD_PASS_WHERE passes it on; on CUDA both are empty.
#if defined(__CUDACC__)
#if defined(SWITCHYARD_TRACED)
#define SWITCHYARD_TARGET cuda_traced_target
#elif defined(SWITCHYARD_NVSHMEM)
#define SWITCHYARD_TARGET cuda_nvshmem_target
#else
#define SWITCHYARD_TARGET cuda_target
#endif
#define SWITCHYARD_DEVICE __device__ __forceinline__
#define SWITCHYARD_KERNEL __global__ __launch_bounds__(1024, 1)
#define SWITCHYARD_KERNEL_OF(num_threads) __global__ __launch_bounds__(num_threads, 1)
#define SWITCHYARD_GRID_CONSTANT __grid_constant__
#define SWITCHYARD_UNROLL _Pragma("unroll")
#define SWITCHYARD_ROLLED _Pragma("unroll 1")
#define SWITCHYARD_WHERE
#define SWITCHYARD_PASS_WHERE
#else
#define SWITCHYARD_TARGET host_target
#define SWITCHYARD_DEVICE inline
#define SWITCHYARD_KERNEL inline
#define SWITCHYARD_KERNEL_OF(num_threads) inline
#define SWITCHYARD_GRID_CONSTANT
#define SWITCHYARD_UNROLL
#define SWITCHYARD_ROLLED
#define SWITCHYARD_WHERE , ::switchyard::emulator::Where where = ::switchyard::emulator::Where::current()
#define SWITCHYARD_PASS_WHERE , where
#endif

namespace switchyard {

inline constexpr uint64_t kNoDeadline = UINT64_MAX;

enum class Order { kRelaxed, kAcquire, kRelease, kAcqRel };
enum class Scope { kBlock, kDevice, kSystem };

// 16 bytes: the widest access of one thread.
struct alignas(16) Vec16 {
  uint32_t words[4];
};

inline constexpr uint64_t kMaxSharedBytes = 227 * 1024;  // of a block on Hopper

// Refuses the launch shapes that either target cannot run.
inline Status check_launch_shape(const char* name, const LaunchShape& shape) {
  if (shape.num_blocks == 0 || shape.num_threads == 0 || shape.num_threads % kWarpSize != 0 ||
      shape.num_threads > 1024)
    return invalid_argument(
        "launch of %s: %u blocks of %u threads (at least 1 block; threads a multiple of %d up to 1024)", name,
        shape.num_blocks, shape.num_threads, kWarpSize);
  if (shape.cluster_blocks == 0 || shape.num_blocks % shape.cluster_blocks != 0)
    return invalid_argument("launch of %s: %u blocks in clusters of %u", name, shape.num_blocks,
                            shape.cluster_blocks);
  if (shape.shared_bytes > kMaxSharedBytes)
    return invalid_argument("launch of %s: %llu bytes of shared memory (at most %llu)", name,
                            static_cast<unsigned long long>(shape.shared_bytes),
                            static_cast<unsigned long long>(kMaxSharedBytes));
  return Status();
}

// What a word does to memory.
enum class WordKind {
  kLoad,
  kStore,
  kAdd,
  kCompareExchange,
  kBulkWait,
  kProxyFence,
  kWireSettle,
  kWireSignal
};

}  // namespace switchyard
