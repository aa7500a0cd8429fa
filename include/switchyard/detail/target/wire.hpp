// The words of the wire: puts and signals to ranks that loads and stores do not reach. A symmetric address is
// the address, in the caller's own arena, of what is meant in the peer's.
//
//   wire_put(wire, peer, dst, src, bytes)   Copies from the own arena to the peer's. It returns at once, and
//       the bytes arrive at any later time, in any order. `dst` is a symmetric address. Addresses and size
//       may be any; multiples of 16 are fast. The source must stay as it is until the peer has answered. One
//       thread calls it.
//   wire_put_warp(..)   The same, called by all lanes of a warp with equal arguments. A put is that of the
//       whole warp: what lanes have written to the source needs a sync_warp before it, and a settle by one
//       lane needs a sync_warp behind it.
//   wire_settle(wire)   Every put of this rank that happened before this call, in this thread or in one that
//       this thread has synchronised with, arrives before any signal that is sent to the same peer after this
//       call, by whatever thread of this rank.
//   wire_signal(wire, peer, cell, value)   Stores 8 bytes to the peer's `cell`, a symmetric address, after
//       everything that was settled towards that peer. It pairs with an ld_acquire_system of the peer, which
//       then sees these puts. It passes on nothing else: no other store of this rank, and no put to another
//       peer. Signals are not ordered among each other, not even those to one cell.
//
// The end of a kernel settles nothing: puts of one kernel may arrive while the stream's next one runs.
#pragma once

#include "switchyard/detail/target/target.hpp"

#if defined(__CUDACC__) && defined(SWITCHYARD_NVSHMEM)
#include "switchyard/detail/target/nvshmem_wire.cuh"
#elif defined(__CUDACC__)
#include "switchyard/detail/target/cuda_wire.cuh"
#else
#include "switchyard/detail/target/host_wire.hpp"
#endif
