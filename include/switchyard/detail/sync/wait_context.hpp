// How kernels report faults and notice the faults of other ranks.
#pragma once

#include "switchyard/detail/sync/counters.hpp"
#include "switchyard/detail/sync/trace_buffer.hpp"
#include "switchyard/detail/target/wire_handle.hpp"
#include "switchyard/types/fault.hpp"

namespace switchyard {

// False only in builds that measure what the checks cost (SWITCHYARD_UNCHECKED): these have no deadlines and
// no input checks, and never report a fault.
#if defined(SWITCHYARD_UNCHECKED)
inline constexpr bool kChecked = false;
#else
inline constexpr bool kChecked = true;
#endif

// What a kernel needs to report a fault, to notice one, and to bound and trace its waits.
struct WaitContext {
  FaultRecord* record;   // this rank's, in memory that the host can read
  FaultRecord* skipped;  // the same for a step over capacity, after which steps go on
  uint64_t* my_poison;   // 0, or 1 + the rank that found a fault
  // In the memory of this rank's device: where each rank's poison is; null: reached over the wire only.
  uint64_t* const* poison_of_rank;
  Wire wire;
  int32_t my_rank;
  int32_t n_ranks;
  // Added to the ranks and experts that a kernel names. To its kernels, a rank that skips the all-to-all is a
  // world of one rank; what they report has the numbers of the real world.
  int32_t first_rank;
  int32_t first_expert;
  uint64_t timeout_ns;
  TraceBuffer trace;
};

}  // namespace switchyard
