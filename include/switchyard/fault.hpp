// What a kernel leaves behind when a wait runs out of time or its input is bad. The first to find a fault on
// a rank writes the rank's record, which the host can read, and poisons all ranks, whose kernels then leave.
// (A step over capacity poisons nobody, and has a record of its own.)
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

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

}  // namespace switchyard
