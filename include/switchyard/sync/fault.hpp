// What a kernel leaves behind when a wait runs out of time or its input is bad. The first to find a fault on
// a rank writes the rank's record, which the host can read, and poisons all ranks, whose kernels then leave.
// (A step over capacity poisons nobody, and has a record of its own.)
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/sync/counters.hpp"
#include "switchyard/sync/trace.hpp"

namespace switchyard {

// False only in builds that measure what checking costs (SWITCHYARD_UNCHECKED): kernels then wait for ever,
// believe their input and never find a fault.
#if defined(SWITCHYARD_UNCHECKED)
inline constexpr bool kChecked = false;
#else
inline constexpr bool kChecked = true;
#endif

enum class FaultKind : uint32_t {
  kNone,
  kTimeout,      // `late_rank` did not deliver in time
  kBadExpertId,  // topk_ids holds `seen`; valid are -1 and [0, expected)
  kTooManyRows,  // the step has `seen` rows for this rank, the output holds `expected`
  // The step has `seen` rows for `late_rank`, whose memory holds `expected`. All ranks see it and skip the
  // step; none is poisoned, and the next step may come.
  kOverCapacity,
  kOtherTokens,  // `late_rank` has `seen` tokens, this one `expected`; all must have the same
  // src_info sends a row of `expert` back to (k << 32 | token) `seen` of `late_rank`; both halves must be
  // below those of `expected`. The row was sent nowhere.
  kBadSourceInfo,
  kNoExpertRows,  // this rank received `seen` rows, and combine was given none to send back
};

enum class Phase : uint32_t { kNone, kDispatchAsync, kDispatchWait, kCombineAsync, kCombineWait, kAllReduce };

const char* to_string(Phase phase);

struct alignas(64) FaultRecord {
  enum State : uint32_t { kClear, kClaimed, kWritten };
  uint32_t state;
  FaultKind kind;
  Phase phase;
  int32_t waiting_rank;
  int32_t late_rank;  // -1: no rank in particular
  int32_t expert;     // global index; -1: no expert in particular
  uint64_t expected;
  uint64_t seen;
  uint64_t elapsed_ns;
};
static_assert(sizeof(FaultRecord) == 64);

std::string describe(const FaultRecord& record);

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

// A stall, for trying out what lateness does.
struct StallParams {
  uint64_t duration_ns;
};

// When a rank's stream has come so far, by the clock of its target.
struct TimeStampParams {
  uint64_t* reached_ns;
};

}  // namespace switchyard
