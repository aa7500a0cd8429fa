// `--transport process`: the command starts itself once per rank, and shows what all of them report as one.
#pragma once

#include <string>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// How a rank's process ended.
struct RankOutcome {
  std::string output;  // what it wrote to stdout
  std::string errors;  // the same, to stderr
  int exit_code = 0;
  int signal = 0;  // that ended it; 0: none
};

// Runs this program `n_ranks` times at once, with `arguments` and `--rendezvous ADDRESS --rank R`. Returns
// when all have ended; they end with this process, however it ends.
Result<std::vector<RankOutcome>> run_rank_processes(int n_ranks, const std::vector<std::string>& arguments);

// The arguments that this process was started with, without those named (and the value behind each).
std::vector<std::string> own_arguments_without(const std::vector<std::string>& options);

}  // namespace switchyard::tools
