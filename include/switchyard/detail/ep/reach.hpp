// How a kernel reaches its peers. In most worlds every rank loads from and stores to the memory of every
// other; kernels of such worlds have no other way compiled in. Kernels whose first template argument has a
// wire ask for each peer: one that has no address here is reached by puts and signals (target/wire.hpp).
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/sync/signal.hpp"
#include "switchyard/detail/target/wire.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Returns a peer's copy of the buffer; null: the peer can be reached over the wire only.
template <FixedShape Fixed, typename Step, typename T>
SWITCHYARD_DEVICE T* peer_pointer(const Step& step, const RankPointers<T>& buffer, int rank) {
  if constexpr (!kHasWire<Fixed>) {
    return buffer.of_rank[rank];
  } else {
    std::byte* arena = target::ld(step.peers.arena_of_rank + rank);
    if (arena == nullptr) return nullptr;
    return reinterpret_cast<T*>(arena + (reinterpret_cast<std::byte*>(buffer.mine) - step.peers.wire.arena));
  }
}

// Publishes `value` in a cell of a peer; `cell_in(cells)` is its address in a copy of the cells. To a peer
// that is reached over the wire it arrives behind everything that was settled towards it.
template <FixedShape Fixed, typename Step, typename CellIn>
SWITCHYARD_DEVICE void publish(const Step& step, const RankPointers<uint64_t>& cells, int rank,
                               CellIn cell_in, uint64_t value SWITCHYARD_WHERE) {
  uint64_t* of_peer = peer_pointer<Fixed>(step, cells, rank);
  if constexpr (kHasWire<Fixed>)
    if (of_peer == nullptr) {
      target::wire_signal(step.peers.wire, rank, cell_in(cells.mine), value SWITCHYARD_PASS_WHERE);
      return;
    }
  PeerSignal{step.signal_scope, cell_in(of_peer)}.publish(value SWITCHYARD_PASS_WHERE);
}

// Called by a whole warp: calls put(lane) with the whole warp for each lane that has something to put.
template <typename Put>
SWITCHYARD_DEVICE void for_each_far_lane(bool goes_far, Put put) {
  for (uint32_t lanes = target::ballot(goes_far); lanes != 0; lanes &= lanes - 1)
    put(target::lowest_set_bit(lanes));
}

// Settles the puts of all threads of the block; a barrier must have come before. What any thread of the block
// releases from then on tells others that they are settled.
SWITCHYARD_DEVICE void settle_block(const Wire& wire SWITCHYARD_WHERE) {
  if (target::thread_idx() == 0) target::wire_settle(wire SWITCHYARD_PASS_WHERE);
  target::sync_block();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
