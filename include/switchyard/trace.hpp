// What traced kernels write down: when each role of a block began and ended, and each wait that really
// waited, with who was late. ExpertParallel::enable_trace() turns it on, take_trace() returns it.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

enum class Phase : uint32_t;  // fault.hpp

// A new role is a line here and one in to_string().
enum class TraceName : uint32_t {
  // How a wait ended.
  kWait,           // what it waited for came
  kTimedOutWait,   // its time ran out
  kAbandonedWait,  // a fault elsewhere told it to leave
  // Roles, by the names of their functions.
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
  // Of the direct protocol, besides those above.
  kBegin,
  kCountRows,
  kSendCounts,
  kPlaceExperts,
  kPlaceRows,
  kCarryRows,
  kFinish,
  kFindOutputs,
  kPlaceScales,
};

const char* to_string(TraceName name);
constexpr bool is_wait(TraceName name) { return name <= TraceName::kAbandonedWait; }

// A wait, or a role from its begin to its end. (In memory a role is two events, one with its begin and one
// with its end, so that a kernel need not keep the one until the other.)
struct TraceEvent {
  static constexpr uint64_t kNoTime = UINT64_MAX;

  uint64_t begin_ns;  // of target::now_ns()
  uint64_t end_ns;
  TraceName name;
  Phase phase;
  int32_t late_rank;  // of a wait; -1: no rank in particular
  int32_t expert;     // of a wait, global index; -1: no expert in particular
};
static_assert(sizeof(TraceEvent) == 32);

struct BlockTrace {
  std::vector<TraceEvent> events;  // waits, and roles that nest, each with begin and end
  uint64_t num_dropped = 0;        // what came later and found no room
};

struct RankTrace {
  std::vector<BlockTrace> blocks;
};

}  // namespace switchyard
