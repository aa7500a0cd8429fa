// `bench ep` with ranks in processes of their own: what each has measured, and what follows for all of them.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.hpp"
#include "commands/rank_processes.hpp"
#include "report/bench_report.hpp"

namespace switchyard::tools {

// What the process of a rank tells the one that reports.
std::string to_rank_json(const BenchReport& report);

// On how many machines the processes of the world are. Collective.
Result<int> num_machines_of(const World& world);

// Puts the times of the processes beside those of the local transport; if the ranks are on several machines,
// in place of those of one rank. Processes begin a replay as they come, and a rank that is early waits for
// the others: of each replay the rank counts that took least, which is the one that came last.
Status merge_bench_reports(const std::vector<std::string>& rank_jsons, BenchReport& report);
// The same of processes that this one has started.
Result<ExitCode> merge_bench_outcomes(const std::vector<RankOutcome>& outcomes, BenchReport& report);

// Runs this program with `arguments` and `--rank-reports FILE`, a file with a line for each rank. What it
// prints is what this process prints, and its exit code that of the command.
Result<ExitCode> run_beside(std::vector<std::string> arguments, const std::vector<std::string>& rank_jsons);

}  // namespace switchyard::tools
