// The memory that traced kernels write their events into.
#pragma once

#include "switchyard/types/trace.hpp"

namespace switchyard {

// The events of one rank. Each block has its own events and its own count of them, which keeps counting when
// `events_per_block` events are stored. If the pointers are null, nothing is traced.
struct TraceBuffer {
  TraceEvent* events;    // [num_blocks][events_per_block]
  uint64_t* num_events;  // [num_blocks]
  uint32_t events_per_block;
};

}  // namespace switchyard
