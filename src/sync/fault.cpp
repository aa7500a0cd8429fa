#include "switchyard/types/fault.hpp"

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

namespace {

int low_half(uint64_t packed) { return static_cast<int32_t>(packed & UINT32_MAX); }
int high_half(uint64_t packed) { return static_cast<int32_t>(packed >> 32); }

// What the waiting rank wanted of the late one.
std::string awaited_of(const FaultRecord& record) {
  const std::string expert = std::to_string(record.expert);
  switch (record.phase) {
    case Phase::kDispatchAsync:
      return "its number of rows for each expert";
    case Phase::kDispatchWait:
      return "its rows for expert " + expert;
    case Phase::kCombineWait:
      return record.expert >= 0 ? "the output of its expert " + expert : "the output of its experts";
    case Phase::kAllReduce:
      return "its partial sums";
    case Phase::kNone:
    case Phase::kCombineAsync:
      break;
  }
  return "its signal";
}

std::string describe_timeout(const FaultRecord& record) {
  char text[320];
  const double milliseconds = static_cast<double>(record.elapsed_ns) * 1e-6;
  if (record.late_rank == record.waiting_rank && record.phase == Phase::kCombineWait && record.expert >= 0)
    std::snprintf(
        text, sizeof(text),
        "%s: rank %d waited %.3f ms for the output of its own expert %d; was everything launched that "
        "makes it, and are all of its blocks resident?",
        to_string(record.phase), record.waiting_rank, milliseconds, record.expert);
  else if (record.late_rank == record.waiting_rank)
    std::snprintf(text, sizeof(text),
                  "%s: rank %d waited %.3f ms for blocks of its own launch; does something else hold the "
                  "device, so that not all of them are resident?",
                  to_string(record.phase), record.waiting_rank, milliseconds);
  else
    std::snprintf(
        text, sizeof(text),
        "%s: rank %d waited %.3f ms for rank %d, but %s never came; rank %d is dead, stuck, late or "
        "has not made the call",
        to_string(record.phase), record.waiting_rank, milliseconds, record.late_rank,
        awaited_of(record).c_str(), record.late_rank);
  return text;
}

}  // namespace

std::string describe(const FaultRecord& record) {
  char text[320];
  switch (record.kind) {
    case FaultKind::kNone:
      return "no fault";
    case FaultKind::kTimeout:
      return describe_timeout(record);
    case FaultKind::kBadExpertId:
      std::snprintf(text, sizeof(text),
                    "%s: topk_ids of rank %d holds %" PRId64 "; valid ids are -1 (padding) and 0..%" PRIu64,
                    to_string(record.phase), record.waiting_rank, static_cast<int64_t>(record.seen),
                    record.expected - 1);
      return text;
    case FaultKind::kTooManyRows:
      std::snprintf(text, sizeof(text),
                    "%s: rank %d receives %" PRIu64 " rows, its output holds %" PRIu64
                    " (max_rows; a larger capacity_factor makes room in row_buffers())",
                    to_string(record.phase), record.waiting_rank, record.seen, record.expected);
      return text;
    case FaultKind::kOverCapacity:
      if (record.seen == 0)
        return "reopen_step: the last step was skipped on all ranks; it has nothing to combine";
      std::snprintf(text, sizeof(text),
                    "%s: rank %d would receive %" PRIu64 " rows and has room for %" PRIu64
                    "; the step was skipped on all ranks (a larger capacity_factor makes room; "
                    "max_rows_per_expert of masked rows)",
                    to_string(record.phase), record.late_rank, record.seen, record.expected);
      return text;
    case FaultKind::kTokenCountMismatch:
      std::snprintf(text, sizeof(text),
                    "%s: rank %d has %" PRIu64 " tokens, rank %d has %" PRIu64
                    "; where the all-to-all is skipped all ranks have the same tokens",
                    to_string(record.phase), record.late_rank, record.seen, record.waiting_rank,
                    record.expected);
      return text;
    case FaultKind::kBadSourceInfo:
      std::snprintf(
          text, sizeof(text),
          "%s: src_info of rank %d sends a row of expert %d back to token %d, k %d of rank %d; valid "
          "are tokens 0..%d and k 0..%d",
          to_string(record.phase), record.waiting_rank, record.expert, low_half(record.seen),
          high_half(record.seen), record.late_rank, low_half(record.expected) - 1,
          high_half(record.expected) - 1);
      return text;
    case FaultKind::kNoExpertRows:
      if (record.expected == 0)
        std::snprintf(text, sizeof(text),
                      "%s: rank %d received %" PRIu64
                      " rows, but expert_rows is null or empty: they cannot be sent back",
                      to_string(record.phase), record.waiting_rank, record.seen);
      else
        std::snprintf(text, sizeof(text),
                      "store_expert_rows: rows of rank %d end at row %" PRIu64
                      ", and those of its step at %" PRIu64 ": there is nothing to send back for the others",
                      record.waiting_rank, record.expected, record.seen);
      return text;
    case FaultKind::kPeerEnded:
      std::snprintf(text, sizeof(text), "rank %d has ended: its process is gone", record.late_rank);
      return text;
    case FaultKind::kCalledOff:
      std::snprintf(text, sizeof(text),
                    "call_off_step: rank %d has called the step off; it was skipped on all ranks",
                    record.late_rank);
      return text;
  }
  return "unknown fault";
}

}  // namespace switchyard
