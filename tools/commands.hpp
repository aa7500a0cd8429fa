// The commands of `switchyard`. Each adds itself to the parser; main() runs the one that was named.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>

#include "switchyard/runtime/expert_parallel.hpp"

namespace switchyard::tools {

// Exit codes, the same for every command.
enum ExitCode : int {
  kVerified = 0,     // done, and right
  kNotVerified = 1,  // done, and wrong
  kBadArgument = 2,  // one line on stderr names the flag and its limit
  kFault = 3,        // something failed while running
};

// --protocol, the same for every command but for what automatic does.
inline void add_protocol_option(CLI::App& command, Protocol& protocol, const std::string& automatic) {
  static const std::map<std::string, Protocol> kNames = {
      {"automatic", Protocol::kAutomatic}, {"slotted", Protocol::kSlotted}, {"direct", Protocol::kDirect}};
  command
      .add_option("--protocol", protocol,
                  "How rows travel: slotted, direct, or automatic, which " + automatic)
      ->transform(CLI::CheckedTransformer(kNames).description(""))
      ->default_str(to_string(protocol));
}

// Adds the command; `*run` does its work and returns the exit code.
void add_run_command(CLI::App& app, std::function<int()>* run);
void add_simulate_command(CLI::App& app, std::function<int()>* run);
void add_bench_command(CLI::App& app, std::function<int()>* run);
void add_doctor_command(CLI::App& app, std::function<int()>* run);

}  // namespace switchyard::tools
