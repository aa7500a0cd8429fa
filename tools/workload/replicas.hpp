// Replicas of the experts that work most.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/expert_placement.hpp"
#include "workload.hpp"

namespace switchyard::tools {

// [expert]: the rows of all ranks in the workload's first step, or in a sample of it.
std::vector<uint64_t> rows_of_experts(const Workload& workload);

// Adds so many replicas: one by one, of the expert with most rows per replica, on the rank with the fewest
// rows that does not hold it.
Result<ExpertPlacement> with_replicas(const ExpertPlacement& placement,
                                      const std::vector<uint64_t>& rows_of_expert, int num_replicas);

}  // namespace switchyard::tools
