// The commands of `switchyard`. Each adds itself to the parser; main() runs the one that was named.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// Exit codes, the same for every command.
enum ExitCode : int {
  kVerified = 0,     // done, and right
  kNotVerified = 1,  // done, and wrong
  kBadArgument = 2,  // one line on stderr names the flag and its limit
  kFault = 3,        // something failed while running, or what it found could not be written
};

// The work of a command. main() prints its error as one line; a bad argument is exit code 2, any other is 3.
using Command = std::function<Result<ExitCode>()>;

// Adds the command; `*run` becomes its work.
void add_run_command(CLI::App& app, Command* run);
void add_attend_command(CLI::App& app, Command* run);
void add_simulate_command(CLI::App& app, Command* run);
void add_bench_command(CLI::App& app, Command* run);
void add_bench_attention(CLI::App& bench, Command* run);
void add_bench_matmul(CLI::App& bench, Command* run);
void add_schedule_command(CLI::App& app, Command* run);
// Below `bench`.
void add_bench_formats_command(CLI::App& bench, Command* run);
void add_doctor_command(CLI::App& app, Command* run);

}  // namespace switchyard::tools
