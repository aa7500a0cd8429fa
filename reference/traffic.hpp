// The bytes that a step sends from rank to rank, counted from its routing.
#pragma once

#include <cstdint>
#include <vector>

#include "reference.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::reference {

// What leaves each rank in one phase. What stays on the rank is not in it, nor are counts and signals.
struct PhaseTraffic {
  std::vector<uint64_t> to_other_ranks;   // [rank]: in its group or in another
  std::vector<uint64_t> to_other_groups;  // [rank]: over the wire

  uint64_t total_to_other_ranks() const;
  uint64_t total_to_other_groups() const;
};
struct StepTraffic {
  PhaseTraffic dispatch;  // messages, from the tokens' ranks to the experts'
  PhaseTraffic combine;   // expert rows, back
};

struct TrafficOptions {
  Protocol protocol = Protocol::kSlotted;
  int p2p_world_size = 0;  // 0: all ranks are one group
  uint64_t dispatch_message_bytes = 0;
  uint64_t combine_message_bytes = 0;
};

// As this world sends.
TrafficOptions traffic_options(const ExpertParallel& ep);

// Of a step that does not skip the all-to-all.
StepTraffic count_traffic(const Step& step, const TrafficOptions& options);

}  // namespace switchyard::reference
