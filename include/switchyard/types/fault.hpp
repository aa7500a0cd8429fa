// What a kernel reports when a wait misses its deadline or its input is invalid. The first thread of a rank
// that finds a fault writes the rank's FaultRecord, which the host can read, and poisons all ranks: their
// kernels then return without finishing the step. (A step that is skipped poisons no rank, and has a record
// of its own.)
//
// ExpertParallel owns the records; ExpertParallel::fault() returns a copy, and ExpertParallel::synchronize()
// turns the fault into a Status. ExpertParallel::reset() clears the records.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

// What went wrong. `seen`, `expected`, `late_rank` and `expert` are fields of FaultRecord.
enum class FaultKind : uint32_t {
  kNone,
  kTimeout,      // `late_rank` did not deliver before the deadline
  kBadExpertId,  // topk_ids holds `seen`; valid are -1 and [0, expected)
  kTooManyRows,  // the step has `seen` rows for this rank, whose output holds `expected`
  // The step has `seen` rows for `late_rank`, whose memory holds `expected`. All ranks skip the step; none is
  // poisoned, and the next step may follow. `seen` of 0: reopen_step has opened a step that was skipped.
  kOverCapacity,
  // `late_rank` has `seen` tokens, this one `expected`; all must have the same.
  kTokenCountMismatch,
  // src_info sends a row of `expert` back to (k << 32 | token) `seen` of `late_rank`; both halves must be
  // below those of `expected`. The row was sent nowhere.
  kBadSourceInfo,
  // Combine needs `seen` expert rows of this rank to send back, and got none, or store_expert_rows only
  // `expected`.
  kNoExpertRows,
  kPeerEnded,  // the process of `late_rank` has ended
  // `late_rank` has called the step off (ExpertParallel::call_off_step). All ranks skip it, as one over
  // capacity.
  kCalledOff,
};

// The call whose kernel found the fault, or in which a traced event happened.
enum class Phase : uint32_t { kNone, kDispatchAsync, kDispatchWait, kCombineAsync, kCombineWait, kAllReduce };

// Returns the name of the call, such as "dispatch_async".
const char* to_string(Phase phase);

// The first fault that a rank found. Kernels write it; the host may read the other fields once `state` is
// kWritten.
struct alignas(64) FaultRecord {
  // A thread claims a clear record before it writes, so that only the first fault is kept.
  enum State : uint32_t { kClear, kClaimed, kWritten };
  uint32_t state;
  FaultKind kind;
  Phase phase;
  int32_t waiting_rank;  // the rank that found the fault
  int32_t late_rank;     // -1: no rank in particular
  int32_t expert;        // global index; -1: no expert in particular
  uint64_t expected;
  uint64_t seen;
  uint64_t elapsed_ns;  // kTimeout: how long the rank has waited
};
static_assert(sizeof(FaultRecord) == 64);

// Returns a sentence for people: who waited where for whom and for how long, or which value broke which
// limit.
std::string describe(const FaultRecord& record);

}  // namespace switchyard
