// What `switchyard run` says of a run.
#pragma once

#include <string>

#include "run_options.hpp"
#include "workload/run_check.hpp"

namespace switchyard::tools {

void print_table(const RunOptions& options, const RunReport& report);
std::string to_json(const RunOptions& options, const RunReport& report);

}  // namespace switchyard::tools
