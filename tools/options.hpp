// Options that several commands have, each read in one way.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "switchyard/runtime/expert_parallel.hpp"

namespace switchyard::tools {

// --json [FILE]: a report for machines; to stdout, alone, where FILE is - or not given.
void add_json_option(CLI::App& command, std::string& path);
// A list of whole numbers, each low..high, with commas between them.
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int>& values, int low,
                             int high, const std::string& description);
// A seed: any whole number of 64 bits.
CLI::Option* add_seed_option(CLI::App& command, const std::string& name, uint64_t& seed,
                             const std::string& description);
// --protocol; `automatic` says what that does here.
void add_protocol_option(CLI::App& command, Protocol& protocol, const std::string& automatic);

// --format: what tokens are sent as.
void add_format_option(CLI::App& command, TokenFormatKind& format);

// --combine-format: what expert rows are sent back as.
void add_combine_format_option(CLI::App& command, CombineFormat& format);
// Whether --hidden suits the format.
Status check_hidden_option(int hidden, TokenFormatKind format);

// Before the work: can what `flag` names be written? Nothing is written yet.
Status check_output_file(const char* flag, const std::string& path);
// To stdout where the path is -.
Status write_output_file(const char* flag, const std::string& path, const std::string& text);

}  // namespace switchyard::tools
