#include "traffic.hpp"

#include <algorithm>
#include <numeric>

namespace switchyard::reference {
namespace {

void add(PhaseTraffic& traffic, int from, int to, int group, uint64_t bytes) {
  if (from == to) return;
  traffic.to_other_ranks[static_cast<size_t>(from)] += bytes;
  if (from / group != to / group) traffic.to_other_groups[static_cast<size_t>(from)] += bytes;
}

uint64_t sum(const std::vector<uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

}  // namespace

uint64_t PhaseTraffic::total_to_other_ranks() const { return sum(to_other_ranks); }
uint64_t PhaseTraffic::total_to_other_groups() const { return sum(to_other_groups); }

TrafficOptions traffic_options(const ExpertParallel& ep) {
  return {.protocol = ep.config().protocol,
          .p2p_world_size = ep.config().p2p_world_size,
          .dispatch_message_bytes = ep.dispatch_message_bytes(),
          .combine_message_bytes = ep.combine_message_bytes()};
}

StepTraffic count_traffic(const Step& step, const TrafficOptions& options) {
  const auto n_ranks = static_cast<size_t>(step.n_ranks);
  const PhaseTraffic nothing{std::vector<uint64_t>(n_ranks), std::vector<uint64_t>(n_ranks)};
  StepTraffic traffic{nothing, nothing};
  const int group = options.p2p_world_size == 0 ? step.n_ranks : options.p2p_world_size;
  for (int rank = 0; rank < step.n_ranks; ++rank) {
    const std::vector<int32_t>& ids = step.topk_ids[static_cast<size_t>(rank)];
    for (auto token = ids.begin(); token != ids.end(); token += step.top_k)
      for (auto id = token; id != token + step.top_k; ++id) {
        if (*id < 0) continue;
        const int owner = step.owner_of(rank, *id);
        // The slotted protocol sends a repeated id once, and the expert's row back for each.
        const bool is_sent = options.protocol == Protocol::kDirect || std::find(token, id, *id) == id;
        if (is_sent) add(traffic.dispatch, rank, owner, group, options.dispatch_message_bytes);
        add(traffic.combine, owner, rank, group, options.combine_message_bytes);
      }
  }
  return traffic;
}

}  // namespace switchyard::reference
