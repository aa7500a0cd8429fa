// The words of the wire on CUDA over NVSHMEM; target/wire.hpp says what each word means. A rank is the PE of
// the same number, and a symmetric address lies in NVSHMEM's heap.
#pragma once

#include "switchyard/detail/target/cuda.cuh"
#include "switchyard/detail/target/wire_handle.hpp"

namespace switchyard::inline SWITCHYARD_TARGET::target {

namespace detail {
// These are calls, made in plugins/nvshmem/nvshmem_words.cu: NVSHMEM's code for each kind of network,
// inlined, would not fit into the registers of a kernel of 1024 threads, and its headers make every file of
// kernels slow to compile.
__device__ void nvshmem_put(void* dst, const void* src, uint64_t bytes, int pe);
__device__ void nvshmem_put_warp(void* dst, const void* src, uint64_t bytes, int pe);
__device__ void nvshmem_settle();
__device__ void nvshmem_signal(uint64_t* cell, uint64_t value, int pe);
}  // namespace detail

SWITCHYARD_DEVICE void wire_put(const Wire&, int peer, void* dst, const void* src, uint64_t bytes) {
  detail::nvshmem_put(dst, src, bytes, peer);
}
SWITCHYARD_DEVICE void wire_put_warp(const Wire&, int peer, void* dst, const void* src, uint64_t bytes) {
  detail::nvshmem_put_warp(dst, src, bytes, peer);
}
SWITCHYARD_DEVICE void wire_settle(const Wire&) { detail::nvshmem_settle(); }
SWITCHYARD_DEVICE void wire_signal(const Wire&, int peer, uint64_t* cell, uint64_t value) {
  detail::nvshmem_signal(cell, value, peer);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET::target
