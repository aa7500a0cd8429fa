// How much each expert of a workload has to work on.
#pragma once

#include <vector>

#include "workload.hpp"

namespace switchyard::tools {

// [expert]: the rows of all ranks in the workload's first step, or in a sample of it.
std::vector<double> rows_of_experts(const Workload& workload);

}  // namespace switchyard::tools
