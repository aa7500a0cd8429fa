// What kernels report faults through, and notice those of others by.
#pragma once

#include "switchyard/detail/sync/counters.hpp"
#include "switchyard/detail/sync/trace_buffer.hpp"
#include "switchyard/fault.hpp"

namespace switchyard {

// False only in builds that measure what checking costs (SWITCHYARD_UNCHECKED): kernels then wait for ever,
// believe their input and never find a fault.
#if defined(SWITCHYARD_UNCHECKED)
inline constexpr bool kChecked = false;
#else
inline constexpr bool kChecked = true;
#endif

// What a kernel needs to report a fault and to notice one, and to say how long it waited.
struct FaultChannel {
  FaultRecord* record;                  // this rank's, in memory the host can read
  FaultRecord* skipped;                 // the same for a step over capacity, which breaks nothing
  uint32_t* poison[MAX_GPUS_PER_NODE];  // each rank's: 0, or 1 + the rank that found a fault
  int32_t my_rank;
  int32_t n_ranks;
  // Added to the ranks and experts that a kernel names: a rank that does not exchange tokens is a world of
  // its own to its kernels, but not to who reads what they report.
  int32_t first_rank;
  int32_t first_expert;
  uint64_t timeout_ns;
  TraceBuffer trace;
};

}  // namespace switchyard
