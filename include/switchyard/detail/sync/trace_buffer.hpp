// The memory that traced kernels write their events into.
#pragma once

#include "switchyard/trace.hpp"

namespace switchyard {

// Where the blocks of one rank write: each has its own events and its own count of them, which goes on
// counting when `events_per_block` are full. Null: nothing is traced.
struct TraceBuffer {
  TraceEvent* events;    // [num_blocks][events_per_block]
  uint64_t* num_events;  // [num_blocks]
  uint32_t events_per_block;
};

}  // namespace switchyard
