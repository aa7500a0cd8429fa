// Bulk copies and the barriers that they complete on. Before sm_90 there is no engine that copies: the thread
// that asks for a copy makes it, and a barrier is a word of shared memory.
#pragma once

#include <cuda/atomic>
#include <cuda/ptx>

#include "switchyard/detail/target/cuda.cuh"

namespace switchyard::inline SWITCHYARD_TARGET::target {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
class TransferBarrier {
 public:
  SWITCHYARD_DEVICE void init(uint32_t num_arrivals) {
    cuda::ptx::mbarrier_init(&word_, num_arrivals);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  SWITCHYARD_DEVICE void arrive_expect(uint32_t bytes) {
    cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta,
                                         cuda::ptx::space_shared, &word_, bytes);
  }
  SWITCHYARD_DEVICE void arrive() { cuda::ptx::mbarrier_arrive(&word_); }
  SWITCHYARD_DEVICE bool done(uint32_t parity) { return cuda::ptx::mbarrier_try_wait_parity(&word_, parity); }

 private:
  friend SWITCHYARD_DEVICE void bulk_load(void*, const void*, uint32_t, TransferBarrier&);
  uint64_t word_;
};

SWITCHYARD_DEVICE void bulk_load(void* shared_dst, const void* global_src, uint32_t bytes,
                                 TransferBarrier& barrier) {
  cuda::ptx::cp_async_bulk(cuda::ptx::space_shared, cuda::ptx::space_global, shared_dst, global_src, bytes,
                           &barrier.word_);
}
SWITCHYARD_DEVICE void bulk_store(void* global_dst, const void* shared_src, uint32_t bytes) {
  cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, global_dst, shared_src, bytes);
}
SWITCHYARD_DEVICE void bulk_commit() { cuda::ptx::cp_async_bulk_commit_group(); }
template <int kPending>
SWITCHYARD_DEVICE void bulk_wait_read() {
  cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<kPending>{});
}
template <int kPending>
SWITCHYARD_DEVICE void bulk_wait() {
  cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<kPending>{});
}
SWITCHYARD_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
SWITCHYARD_DEVICE void prefetch_to_l2(const void* begin, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(begin)), "r"(bytes)
               : "memory");
}

SWITCHYARD_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

SWITCHYARD_DEVICE void grid_dependency_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
SWITCHYARD_DEVICE void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#else

// A phase is complete when nothing is pending: neither arrivals nor bytes that were announced.
class TransferBarrier {
 public:
  SWITCHYARD_DEVICE void init(uint32_t num_arrivals) { word_ = pack(0, 0, num_arrivals, num_arrivals); }
  SWITCHYARD_DEVICE void arrive_expect(uint32_t bytes) { add(static_cast<int32_t>(bytes), 1); }
  SWITCHYARD_DEVICE void arrive() { add(0, 1); }
  SWITCHYARD_DEVICE bool done(uint32_t parity) {
    return (Word(word_).load(cuda::memory_order_acquire) >> 63) != parity;
  }

 private:
  friend SWITCHYARD_DEVICE void bulk_load(void*, const void*, uint32_t, TransferBarrier&);
  using Word = cuda::atomic_ref<uint64_t, cuda::thread_scope_block>;

  // From the top: the parity of the current phase, 31 bits of pending bytes (below zero if a load ended
  // before it was announced), the arrivals of a phase, the pending ones.
  SWITCHYARD_DEVICE static uint64_t pack(uint64_t parity, int32_t bytes, uint32_t of_phase,
                                         uint32_t pending) {
    return parity << 63 | static_cast<uint64_t>(static_cast<uint32_t>(bytes) & 0x7fffffffu) << 32 |
           of_phase << 16 | pending;
  }
  SWITCHYARD_DEVICE void add(int32_t bytes, uint32_t num_arrivals) {
    uint64_t old = Word(word_).load(cuda::memory_order_relaxed), changed;
    do {
      const int32_t pending_bytes = (static_cast<int32_t>(old >> 32 << 1) >> 1) + bytes;
      const uint32_t of_phase = static_cast<uint32_t>(old) >> 16;
      const uint32_t pending = (static_cast<uint32_t>(old) & 0xffffu) - num_arrivals;
      const bool is_complete = pending_bytes == 0 && pending == 0;
      changed =
          pack(old >> 63 ^ (is_complete ? 1 : 0), pending_bytes, of_phase, is_complete ? of_phase : pending);
    } while (!Word(word_).compare_exchange_weak(old, changed, cuda::memory_order_acq_rel,
                                                cuda::memory_order_relaxed));
  }

  uint64_t word_;
};

SWITCHYARD_DEVICE void bulk_load(void* shared_dst, const void* global_src, uint32_t bytes,
                                 TransferBarrier& barrier) {
  copy_row(shared_dst, global_src, bytes, 0, 1);
  barrier.add(-static_cast<int32_t>(bytes), 0);
}
SWITCHYARD_DEVICE void bulk_store(void* global_dst, const void* shared_src, uint32_t bytes) {
  copy_row(global_dst, shared_src, bytes, 0, 1);
}
SWITCHYARD_DEVICE void bulk_commit() {}
template <int kPending>
SWITCHYARD_DEVICE void bulk_wait_read() {}
template <int kPending>
SWITCHYARD_DEVICE void bulk_wait() {}
SWITCHYARD_DEVICE void fence_proxy_async() {}
SWITCHYARD_DEVICE void prefetch_to_l2(const void*, uint32_t) {}
SWITCHYARD_DEVICE void fence_proxy_async_shared() {}
SWITCHYARD_DEVICE void grid_dependency_launch() {}
SWITCHYARD_DEVICE void grid_dependency_wait() {}

#endif

}  // namespace switchyard::inline SWITCHYARD_TARGET::target
