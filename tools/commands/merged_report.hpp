// The reports of ranks that ran in processes of their own, as one.
#pragma once

#include <string>
#include <vector>

#include "command_line.hpp"
#include "rank_processes.hpp"
#include "switchyard/world.hpp"
#include "workload/run_check.hpp"

namespace switchyard::tools {

// Adds what the process of `rank` reported with --json.
Status merge_report(int rank, const std::string& json, RunReport& report);

// Prints what the processes wrote to stderr, and how they ended if it was not in order: of every rank,
// whatever is wrong with another. Returns the worst exit code.
ExitCode print_errors(const std::vector<RankOutcome>& outcomes);

// Both, of processes that this one has started. A report that cannot be read is an error, after all ranks
// were heard.
Result<ExitCode> merge_outcomes(const std::vector<RankOutcome>& outcomes, RunReport& report);

// The same of the processes of a world, to which each of them gives its own report. Collective.
Status gather_reports(const World& world, const std::string& json, RunReport& report);

// The error of the first rank that has one, prefixed with its number unless all say the same. Collective.
Status first_error_of(const World& world, const Status& mine);

}  // namespace switchyard::tools
