// What traced kernels record: when each role of a block began and ended, and each wait that was not satisfied
// at its first poll, with the rank it waited for. ExpertParallel::enable_trace() turns tracing on;
// ExpertParallel::take_trace() returns a copy of the events, which the caller owns.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

enum class Phase : uint32_t;  // types/fault.hpp

// What an event is: a wait by its outcome, or a role by the name of its function. A new role needs a line
// here and one in to_string().
enum class TraceName : uint32_t {
  // Waits.
  kWait,           // what it waited for arrived
  kTimedOutWait,   // the deadline passed
  kAbandonedWait,  // a fault elsewhere poisoned the rank
  // Roles of both protocols, or of the slotted one.
  kCountMessages,
  kSend,
  kWatch,
  kCollectCounts,
  kBuildTables,
  kPublishOffsets,
  kDecode,
  kReadRanges,
  kSendRows,
  kSignal,
  kCollectRows,
  kReduce,
  // Roles that only the direct protocol has.
  kBegin,
  kCountRows,
  kSendCounts,
  kAssignExperts,
  kAssignRows,
  kCarryRows,
  kFinish,
  kFindOutputs,
  kStoreScales,
};

// Returns the name of a role's function, or what kind of wait it is.
const char* to_string(TraceName name);
// Returns whether the event is a wait and not a role.
constexpr bool is_wait(TraceName name) { return name <= TraceName::kAbandonedWait; }

// A wait or a role, with its begin and its end. (A kernel writes a role as two events, one with the begin and
// one with the end, so that it need not keep the begin in a register; take_trace() joins them.)
struct TraceEvent {
  static constexpr uint64_t kNoTime = UINT64_MAX;

  // Nanoseconds: std::chrono::steady_clock on the host, %globaltimer on a GPU. The clocks of two GPUs need
  // not agree.
  uint64_t begin_ns;
  uint64_t end_ns;
  TraceName name;
  Phase phase;
  int32_t late_rank;  // waits: the rank waited for; -1: no rank in particular
  int32_t expert;     // waits: its global index; -1: no expert in particular
};
static_assert(sizeof(TraceEvent) == 32);

// The events of one thread block.
struct BlockTrace {
  std::vector<TraceEvent> events;  // waits, which may overlap, and roles, which nest
  uint64_t num_dropped = 0;        // events that did not fit
};

// The events of one rank since the last ExpertParallel::take_trace().
struct RankTrace {
  std::vector<BlockTrace> blocks;
};

}  // namespace switchyard
