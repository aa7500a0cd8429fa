// Options that several commands have, each read in one way.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "files/whole_number.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::tools {

// --json [FILE]: a report for machines; to stdout, alone, where FILE is - or not given.
void add_json_option(CLI::App& command, std::string& path);
// A whole number low..high.
template <typename T>
CLI::Option* add_number_option(CLI::App& command, const std::string& name, T& value,
                               std::type_identity_t<T> low, std::type_identity_t<T> high,
                               const std::string& description) {
  const std::string range = std::to_string(low) + ".." + std::to_string(high);
  const auto parse = [=, &value](const std::string& text) {
    T number{};
    if (!is_whole_number(text, number) || number < low || number > high)
      throw CLI::ValidationError(name, "'" + text + "' must be a whole number " + range);
    value = number;
  };
  return command.add_option_function<std::string>(name, parse, description)
      ->default_str(std::to_string(value))
      ->type_name(range);
}
// A number low..high, with a fraction or without.
CLI::Option* add_fraction_option(CLI::App& command, const std::string& name, double& value, double low,
                                 double high, const std::string& description);
// A list of whole numbers, each low..high, with commas between them.
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int>& values, int low,
                             int high, const std::string& description);
// One of some names, each of which stands for a value.
template <typename T>
CLI::Option* add_choice_option(CLI::App& command, const std::string& name, T& value,
                               const std::vector<std::pair<std::string, T>>& choices,
                               const std::string& description) {
  const auto parse = [=, &value](const std::string& text) {
    std::string all;
    for (const auto& [choice, meaning] : choices) {
      if (text == choice) {
        value = meaning;
        return;
      }
      all += (all.empty() ? "" : ", ") + choice;
    }
    throw CLI::ValidationError(name, "'" + text + "' must be one of " + all);
  };
  const auto is_default = [&](const auto& choice) { return choice.second == value; };
  return command.add_option_function<std::string>(name, parse, description)
      ->default_str(std::find_if(choices.begin(), choices.end(), is_default)->first)
      ->type_name("");
}
// A seed: any whole number of 64 bits.
CLI::Option* add_seed_option(CLI::App& command, const std::string& name, uint64_t& seed,
                             const std::string& description);
// --target: auto, host or cuda.
void add_target_option(CLI::App& command, std::string& target,
                       const std::string& description = "Where to run: auto takes a GPU if there is one");
// Whether there is such a target here.
Status check_target_option(const std::string& target);
TargetChoice target_choice(const std::string& target);
// --protocol; `automatic` says what that does here.
void add_protocol_option(CLI::App& command, Protocol& protocol, const std::string& automatic);

// --format: what tokens are sent as.
void add_format_option(CLI::App& command, TokenFormatKind& format);
// The same, or any: nothing.
void add_format_option(CLI::App& command, std::optional<TokenFormatKind>& format);

// --combine-format: what expert rows are sent back as.
void add_combine_format_option(CLI::App& command, CombineFormat& format);
// The same, or any: nothing.
void add_combine_format_option(CLI::App& command, std::optional<CombineFormat>& format);
// As the options are given.
template <typename Format>
std::string name_of(const std::optional<Format>& format) {
  return format ? to_string(*format) : "any";
}
// What the library says of a configuration, with the flags of its fields.
Status with_flags(const Status& status);
// Whether --hidden suits the format.
Status check_hidden_option(int hidden, TokenFormatKind format);

}  // namespace switchyard::tools
