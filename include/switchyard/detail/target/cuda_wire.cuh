// The words of the wire on CUDA between ranks of one process, whose memory the GPU can store to: puts are
// stores. target/wire.hpp says what each word means.
#pragma once

#include "switchyard/detail/target/cuda.cuh"
#include "switchyard/detail/target/wire_handle.hpp"

namespace switchyard::inline SWITCHYARD_TARGET::target {

namespace detail {
// What the address in this rank's arena means in the peer's.
template <typename T>
SWITCHYARD_DEVICE T* address_at_peer(const Wire& wire, int peer, T* symmetric) {
  std::byte* peer_arena = wire.arena_of_rank[peer];
  return reinterpret_cast<T*>(peer_arena + (reinterpret_cast<std::byte*>(symmetric) - wire.arena));
}
template <typename Unit>
SWITCHYARD_DEVICE void copy_units(void* dst, const void* src, uint64_t bytes, int lane_idx, int num_lanes) {
  const uint32_t num_units = static_cast<uint32_t>(bytes / sizeof(Unit));
  SWITCHYARD_ROLLED
  for (uint32_t i = static_cast<uint32_t>(lane_idx); i < num_units; i += static_cast<uint32_t>(num_lanes))
    static_cast<Unit*>(dst)[i] = static_cast<const Unit*>(src)[i];
}
SWITCHYARD_DEVICE void put_part(const Wire& wire, int peer, void* dst, const void* src, uint64_t bytes,
                                int lane_idx, int num_lanes) {
  void* peer_dst = address_at_peer(wire, peer, dst);
  const uint64_t alignment = reinterpret_cast<uint64_t>(peer_dst) | reinterpret_cast<uint64_t>(src) | bytes;
  if (alignment % sizeof(uint4) == 0)
    copy_row(peer_dst, src, bytes, lane_idx, num_lanes);
  else if (alignment % sizeof(uint32_t) == 0)
    copy_units<uint32_t>(peer_dst, src, bytes, lane_idx, num_lanes);
  else
    copy_units<uint8_t>(peer_dst, src, bytes, lane_idx, num_lanes);
}
}  // namespace detail

SWITCHYARD_DEVICE void wire_put(const Wire& wire, int peer, void* dst, const void* src, uint64_t bytes) {
  detail::put_part(wire, peer, dst, src, bytes, 0, 1);
}
SWITCHYARD_DEVICE void wire_put_warp(const Wire& wire, int peer, void* dst, const void* src, uint64_t bytes) {
  detail::put_part(wire, peer, dst, src, bytes, thread_idx() % kWarpSize, kWarpSize);
}
SWITCHYARD_DEVICE void wire_settle(const Wire&) {
  cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
}
SWITCHYARD_DEVICE void wire_signal(const Wire& wire, int peer, uint64_t* cell, uint64_t value) {
  store<Order::kRelease, Scope::kSystem>(detail::address_at_peer(wire, peer, cell), value);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET::target
