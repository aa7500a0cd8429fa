#include "switchyard/sync/fault.hpp"

#include <cinttypes>
#include <cstdio>

namespace switchyard {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kNone:
      return "none";
    case Phase::kDispatchAsync:
      return "dispatch_async";
    case Phase::kDispatchWait:
      return "dispatch_wait";
    case Phase::kCombineAsync:
      return "combine_async";
    case Phase::kCombineWait:
      return "combine_wait";
    case Phase::kAllReduce:
      return "all_reduce";
  }
  return "unknown";
}

std::string describe(const FaultRecord& record) {
  char text[320];
  switch (record.kind) {
    case FaultKind::kNone:
      return "no fault";
    case FaultKind::kTimeout: {
      // A count cell holds all ones until its count comes, whatever the count is.
      const bool is_cell = record.seen == UINT64_MAX;
      const std::string expert = record.expert < 0 ? "" : " (expert " + std::to_string(record.expert) + ")";
      std::snprintf(text, sizeof(text),
                    "%s: rank %d waited %.3f ms for rank %d%s: expected %s%s, saw 0x%" PRIx64 "%s",
                    to_string(record.phase), record.waiting_rank,
                    static_cast<double>(record.elapsed_ns) * 1e-6, record.late_rank, expert.c_str(),
                    is_cell ? "a count" : "", is_cell ? "" : std::to_string(record.expected).c_str(),
                    record.seen, is_cell ? " (nothing arrived)" : "");
      return text;
    }
    case FaultKind::kBadExpertId:
      std::snprintf(text, sizeof(text),
                    "%s: topk_ids of rank %d holds %" PRId64 "; valid ids are -1 (padding) and 0..%" PRIu64,
                    to_string(record.phase), record.waiting_rank, static_cast<int64_t>(record.seen),
                    record.expected - 1);
      return text;
    case FaultKind::kTooManyRows:
      std::snprintf(text, sizeof(text), "%s: rank %d receives %" PRIu64 " rows, its output holds %" PRIu64,
                    to_string(record.phase), record.waiting_rank, record.seen, record.expected);
      return text;
    case FaultKind::kOverCapacity:
      std::snprintf(text, sizeof(text),
                    "%s: rank %d would receive %" PRIu64 " rows and has room for %" PRIu64
                    "; the step was skipped on all ranks (a larger capacity_factor makes room)",
                    to_string(record.phase), record.late_rank, record.seen, record.expected);
      return text;
    case FaultKind::kOtherTokens:
      std::snprintf(text, sizeof(text),
                    "%s: rank %d has %" PRIu64 " tokens, rank %d has %" PRIu64
                    "; where the all-to-all is skipped all ranks have the same tokens",
                    to_string(record.phase), record.late_rank, record.seen, record.waiting_rank,
                    record.expected);
      return text;
  }
  return "unknown fault";
}

}  // namespace switchyard
