#include "switchyard/types/trace.hpp"

namespace switchyard {

const char* to_string(TraceName name) {
  switch (name) {
    case TraceName::kWait:
      return "wait";
    case TraceName::kTimedOutWait:
      return "timed-out wait";
    case TraceName::kAbandonedWait:
      return "abandoned wait";
    case TraceName::kCountMessages:
      return "count_messages";
    case TraceName::kSend:
      return "send";
    case TraceName::kWatch:
      return "watch";
    case TraceName::kCollectCounts:
      return "collect_counts";
    case TraceName::kBuildTables:
      return "build_tables";
    case TraceName::kPublishOffsets:
      return "publish_offsets";
    case TraceName::kDecode:
      return "decode";
    case TraceName::kReadRanges:
      return "read_ranges";
    case TraceName::kSendRows:
      return "send_rows";
    case TraceName::kSignal:
      return "signal";
    case TraceName::kCollectRows:
      return "collect_rows";
    case TraceName::kReduce:
      return "reduce";
    case TraceName::kBegin:
      return "begin";
    case TraceName::kCountRows:
      return "count_rows";
    case TraceName::kSendCounts:
      return "send_counts";
    case TraceName::kAssignExperts:
      return "assign_experts";
    case TraceName::kAssignRows:
      return "assign_rows";
    case TraceName::kCarryRows:
      return "carry_rows";
    case TraceName::kFinish:
      return "finish";
    case TraceName::kFindOutputs:
      return "find_outputs";
    case TraceName::kStoreScales:
      return "store_scales";
  }
  return "unknown";
}

}  // namespace switchyard
