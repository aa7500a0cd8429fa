// The calls of NVSHMEM behind the words of the wire (target/nvshmem_wire.cuh), which kernels of all formats
// link.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "switchyard/detail/target/nvshmem_wire.cuh"

namespace switchyard::inline SWITCHYARD_TARGET::target::detail {

__device__ __noinline__ void nvshmem_put(void* dst, const void* src, uint64_t bytes, int pe) {
  nvshmem_putmem_nbi(dst, src, bytes, pe);
}

// A row for a peer that stores reach is copied as inside a process: NVSHMEM's own put has one load of each
// lane in flight.
__device__ __noinline__ void nvshmem_put_warp(void* dst, const void* src, uint64_t bytes, int pe) {
  void* const at_peer = nvshmem_ptr(dst, pe);
  const uint64_t alignment = reinterpret_cast<uint64_t>(at_peer) | reinterpret_cast<uint64_t>(src) | bytes;
  if (at_peer != nullptr && alignment % sizeof(uint4) == 0)
    copy_row(at_peer, src, bytes, thread_idx() % kWarpSize, kWarpSize);
  else
    nvshmemx_putmem_nbi_warp(dst, src, bytes, pe);
}

// nvshmem_quiet, not nvshmem_fence. What is settled here was put by any thread of this PE, over whatever
// queue of the network that thread was given, and the signal behind it may leave by another one. A fence
// promises order between operations; where queues differ only their completion gives that, which is what a
// quiet waits for. (The fence of 3.4.5 waits, too, but with several network cards not for all of their
// queues.) Where peers are reached by stores, the fence in nvshmem_signal() orders them.
__device__ __noinline__ void nvshmem_settle() { nvshmem_quiet(); }

// NVSHMEM signals a peer that stores reach by a store without any order: the fence makes it a release, of
// what this thread and all those that it has synchronised with have put.
__device__ __noinline__ void nvshmem_signal(uint64_t* cell, uint64_t value, int pe) {
  cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
  nvshmemx_signal_op(cell, value, NVSHMEM_SIGNAL_SET, pe);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET::target::detail
