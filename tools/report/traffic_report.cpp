#include "traffic_report.hpp"

#include <algorithm>
#include <cstdio>

namespace switchyard::tools {
namespace {

void print_phase(const char* name, const reference::PhaseTraffic& phase) {
  const auto most = std::max_element(phase.to_other_ranks.begin(), phase.to_other_ranks.end());
  std::printf("  %-16s %.3f MB leave their ranks, %.3f MB their groups; of one rank %.3f MB at most", name,
              static_cast<double>(phase.total_to_other_ranks()) * 1e-6,
              static_cast<double>(phase.total_to_other_groups()) * 1e-6,
              most == phase.to_other_ranks.end() ? 0.0 : static_cast<double>(*most) * 1e-6);
  if (phase.least_to_other_ranks > 0)
    std::printf("; %.3f times the least", static_cast<double>(phase.total_to_other_ranks()) /
                                              static_cast<double>(phase.least_to_other_ranks));
  std::printf("\n");
}

JsonObject phase_json(const reference::PhaseTraffic& phase) {
  JsonObject json;
  json.add("bytes_to_other_ranks", phase.to_other_ranks)
      .add("bytes_to_other_groups", phase.to_other_groups)
      .add("least_bytes_to_other_ranks", phase.least_to_other_ranks);
  return json;
}

}  // namespace

void print_traffic(const reference::StepTraffic& traffic) {
  print_phase("sent to experts", traffic.dispatch);
  print_phase("sent back", traffic.combine);
}

JsonObject traffic_json(const reference::StepTraffic& traffic) {
  JsonObject json;
  json.add("dispatch", phase_json(traffic.dispatch)).add("combine", phase_json(traffic.combine));
  return json;
}

}  // namespace switchyard::tools
