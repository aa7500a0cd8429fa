// A block of a kernel as the environment of a tile scheduler.
#pragma once

#include "switchyard/detail/target/target.hpp"
#include "switchyard/types/tile_scheduler.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The producer is `num_producer_threads` threads from `first_producer_thread` on: whole warps, or one thread
// that needs no barrier (MHASchedulerSynchronization::NONE). A producer of more than one warp meets at named
// barrier `producer_barrier`.
struct ProducerThreads {
  int first_producer_thread = 0;
  int num_producer_threads = kWarpSize;
  uint32_t producer_barrier = 15;
};

template <ProducerThreads kProducer = ProducerThreads{}>
struct BlockEnvironment {
  SWITCHYARD_DEVICE uint32_t block_idx() const { return static_cast<uint32_t>(target::block_idx()); }
  SWITCHYARD_DEVICE bool is_producer_leader() const {
    return target::thread_idx() == kProducer.first_producer_thread;
  }
  SWITCHYARD_DEVICE uint32_t increment_wrapping(uint32_t* word, uint32_t last) const {
    return target::atomic_inc_wrap_relaxed_device(word, last);
  }
  // These accesses are ordered by the barriers below, or by those of the kernel's pipeline.
  SWITCHYARD_DEVICE void publish(uint32_t* mailbox, uint32_t value) const { target::st(mailbox, value); }
  SWITCHYARD_DEVICE uint32_t receive(const uint32_t* mailbox) const { return target::ld(mailbox); }
  SWITCHYARD_DEVICE void sync_producer() const {
    if constexpr (kProducer.num_producer_threads <= kWarpSize)
      target::sync_warp();
    else
      target::named_barrier_sync(kProducer.producer_barrier, kProducer.num_producer_threads);
  }
  SWITCHYARD_DEVICE void sync_all() const { target::sync_block(); }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
