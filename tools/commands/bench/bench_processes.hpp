// `bench ep --transport process`: what each rank's process has measured, and what follows for all of them.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.hpp"
#include "commands/rank_processes.hpp"
#include "report/bench_report.hpp"

namespace switchyard::tools {

// What the process of a rank writes to stdout.
std::string to_rank_json(const BenchReport& report);

// Adds the times of the processes to those of the local transport. Processes begin a replay as they come, and
// a rank that is early waits for the others: of each replay the rank counts that took least, which is the one
// that came last.
Result<ExitCode> merge_bench_outcomes(const std::vector<RankOutcome>& outcomes, BenchReport& report);

}  // namespace switchyard::tools
