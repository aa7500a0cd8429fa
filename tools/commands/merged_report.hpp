// The reports of ranks that ran in processes of their own, as one.
#pragma once

#include <functional>
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

// A launcher has started the processes, so how many ranks there are is known when the world is: sets
// `n_ranks`, checks it if it was given, and has the other options finished. What is wrong with them in any
// process is the answer in all. Collective.
Status finish_launched_options(const World& world, bool ranks_given, int& n_ranks,
                               const std::function<Status()>& finish);

// The exit code of a process for which that of rank 0 speaks, whatever it has to say. A launcher ends all
// processes as soon as one fails: rank 0 might not have spoken yet.
constexpr ExitCode kSaidByRank0 = kVerified;

// Whether the processes of all ranks were started with the same options but for these; if not, all of them
// say what differs. Collective.
Status check_same_options(const World& world, const std::vector<std::string>& options_that_may_differ);

// The text of every rank's process. Collective.
Result<std::vector<std::string>> gather_texts(const World& world, const std::string& mine);

}  // namespace switchyard::tools
