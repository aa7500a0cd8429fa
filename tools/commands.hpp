// The commands of `switchyard`. Each adds itself to the parser; main() runs the one that was named.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace switchyard::tools {

// Exit codes, the same for every command.
enum ExitCode : int {
  kVerified = 0,     // done, and right
  kNotVerified = 1,  // done, and wrong
  kBadArgument = 2,  // one line on stderr names the flag and its limit
  kFault = 3,        // something failed while running
};

// Adds the command; `*run` does its work and returns the exit code.
void add_run_command(CLI::App& app, std::function<int()>* run);
void add_attend_command(CLI::App& app, std::function<int()>* run);
void add_simulate_command(CLI::App& app, std::function<int()>* run);
void add_bench_command(CLI::App& app, std::function<int()>* run);
void add_bench_attention(CLI::App& bench, std::function<int()>* run);
void add_bench_matmul(CLI::App& bench, std::function<int()>* run);
void add_schedule_command(CLI::App& app, std::function<int()>* run);
// Below `bench`.
void add_bench_formats_command(CLI::App& bench, std::function<int()>* run);
void add_doctor_command(CLI::App& app, std::function<int()>* run);

}  // namespace switchyard::tools
