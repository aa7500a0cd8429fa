// The words of the wire on the CPU; target/wire.hpp says what each word means.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/detail/target/host.hpp"
#include "switchyard/detail/target/wire_handle.hpp"

namespace switchyard::emulator {

// What carries puts and signals for the ranks of this process: emulator/local_wire.hpp among themselves. The
// threads of all kernels call it at once.
class WireEngine {
 public:
  virtual ~WireEngine() = default;
  virtual void put(int rank, int peer, void* dst, const void* src, uint64_t bytes, Where where) = 0;
  virtual void settle(int rank, Where where) = 0;
  virtual void signal(int rank, int peer, uint64_t* cell, uint64_t value, Where where) = 0;
};

}  // namespace switchyard::emulator

namespace switchyard::inline host_target::target {

inline void wire_put(const Wire& wire, int peer, void* dst, const void* src, uint64_t bytes,
                     Where where = Where::current()) {
  detail::preemption_point(where);
  wire.engine->put(wire.rank, peer, dst, src, bytes, where);
}
inline void wire_put_warp(const Wire& wire, int peer, void* dst, const void* src, uint64_t bytes,
                          Where where = Where::current()) {
  if (thread_idx() % kWarpSize == 0) wire_put(wire, peer, dst, src, bytes, where);
}
inline void wire_settle(const Wire& wire, Where where = Where::current()) {
  detail::preemption_point(where);
  wire.engine->settle(wire.rank, where);
}
inline void wire_signal(const Wire& wire, int peer, uint64_t* cell, uint64_t value,
                        Where where = Where::current()) {
  detail::preemption_point(where);
  wire.engine->signal(wire.rank, peer, cell, value, where);
}

}  // namespace switchyard::inline host_target::target
