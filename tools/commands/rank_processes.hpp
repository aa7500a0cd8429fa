// `--transport process`: the command starts itself once per rank, and shows what all of them report as one.
#pragma once

#include <string>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// A file that a rank's process may write to beside stdout, which its report has for itself.
inline constexpr const char* kExtraOutput = "/proc/self/fd/3";

// How a rank's process ended.
struct RankOutcome {
  std::string output;      // what it wrote to stdout
  std::string errors;      // the same, to stderr
  std::string extra;       // the same, to kExtraOutput
  int exit_code = 0;       // 127: the program could not be run; `errors` says why
  int signal = 0;          // that ended it; 0: none
  bool was_ended = false;  // by this program, since another one had failed and this one did not end
};

// Runs this program once with each list of arguments, all at once. Returns when all have ended; they end with
// this process, however it ends.
Result<std::vector<RankOutcome>> run_processes(const std::vector<std::vector<std::string>>& arguments);

// The same `n_ranks` times, with `arguments` and `--rendezvous ADDRESS --rank R`.
Result<std::vector<RankOutcome>> run_rank_processes(int n_ranks, const std::vector<std::string>& arguments);

// The arguments that this process was started with, without those named (and the value behind each).
std::vector<std::string> own_arguments_without(const std::vector<std::string>& options);

}  // namespace switchyard::tools
