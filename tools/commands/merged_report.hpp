// The reports of ranks that ran in processes of their own, as one.
#pragma once

#include <string>

#include "workload/run_check.hpp"

namespace switchyard::tools {

// Adds what the process of `rank` reported with --json.
Status merge_report(int rank, const std::string& json, RunReport& report);

}  // namespace switchyard::tools
