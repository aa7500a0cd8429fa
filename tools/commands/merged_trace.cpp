#include "merged_trace.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace switchyard::tools {
namespace {

using Json = nlohmann::ordered_json;

uint64_t origin_of(const Json& trace) { return trace.at("otherData").at("origin_ns").get<uint64_t>(); }

std::string merge(const std::vector<Json>& traces) {
  uint64_t origin_ns = UINT64_MAX, num_dropped = 0;
  for (const Json& trace : traces) {
    origin_ns = std::min(origin_ns, origin_of(trace));
    num_dropped += trace.at("otherData").at("dropped_events").get<uint64_t>();
  }
  Json about = traces.front().at("otherData");
  about["origin_ns"] = origin_ns;
  about["dropped_events"] = num_dropped;
  std::string events;
  for (const Json& trace : traces) {
    const double later_us = static_cast<double>(origin_of(trace) - origin_ns) / 1e3;
    for (Json event : trace.at("traceEvents")) {
      if (event.contains("ts")) event["ts"] = event.at("ts").get<double>() + later_us;
      events.append(events.empty() ? "" : ",\n").append(event.dump());
    }
  }
  return "{\"displayTimeUnit\":\"ns\",\n\"otherData\":" + about.dump() + ",\n\"traceEvents\":[\n" + events +
         "\n]}\n";
}

}  // namespace

Result<std::string> merge_traces(const std::vector<std::string>& traces) {
  std::vector<Json> parsed;
  try {
    for (const std::string& trace : traces)
      if (!trace.empty()) parsed.push_back(Json::parse(trace));
    if (parsed.empty()) return unavailable("--trace: no rank has written a trace");
    return merge(parsed);
  } catch (const std::exception& error) {
    return internal_error("--trace: the trace of a rank cannot be read: %s", error.what());
  }
}

}  // namespace switchyard::tools
