// A command line: commands below commands, the options of each, and the work of the one that is named. Only
// command_line.cpp knows the library that parses it, because compiling that takes longer than the rest of a
// command.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "files/whole_number.hpp"
#include "switchyard/status.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace switchyard::tools {

// Exit codes, the same for every command.
enum ExitCode : int {
  kVerified = 0,     // done, and right
  kNotVerified = 1,  // done, and wrong
  kBadArgument = 2,  // one line on stderr names the flag and its limit
  kFault = 3,        // something failed while running, or what it found could not be written
};

// What a command does once its options have their values. main() prints its error as one line; a bad argument
// is exit code 2, any other is 3.
using Work = std::function<Result<ExitCode>()>;

// An option that was added; valid as long as its command line.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // Declares that the two cannot be given together.
  Option& excludes(const Option& other);
  // Sets what the help says of the default and the value.
  Option& show_default(const std::string& text);
  Option& hide_default() { return show_default(""); }
  Option& show_type(const std::string& text);
  // May be called when the command works.
  bool is_given() const;

 private:
  CLI::Option* option_;
};

// A command and what it may be told. Values are written where the caller says, before the command works; what
// they are when an option is added is its default. Each must outlive the command line.
class Command {
 public:
  Command(CLI::App* app, Work* work) : app_(app), work_(work) {}

  // Adds a command below this one, which must then be given one.
  Command add_command(const std::string& name, const std::string& description);
  // Sets what the command does when it is the one that is named.
  void set_work(Work work);

  // A whole number low..high.
  template <typename T>
  Option add_number(const std::string& name, T& value, std::type_identity_t<T> low,
                    std::type_identity_t<T> high, const std::string& description) {
    const std::string range = std::to_string(low) + ".." + std::to_string(high);
    const auto read = [=, &value](const std::string& text) {
      T number{};
      if (!is_whole_number(text, number) || number < low || number > high)
        return invalid_argument("'%s' must be a whole number %s", text.c_str(), range.c_str());
      value = number;
      return Status();
    };
    return add_value(name, read, description).show_default(std::to_string(value)).show_type(range);
  }
  // A seed: any whole number of 64 bits.
  Option add_seed(const std::string& name, uint64_t& seed, const std::string& description) {
    return add_number(name, seed, 0, UINT64_MAX, description).show_type("SEED");
  }
  // A number low..high, with a fraction or without.
  Option add_fraction(const std::string& name, double& value, double low, double high,
                      const std::string& description);
  // A list of whole numbers, each low..high, with commas between them.
  Option add_list(const std::string& name, std::vector<int>& values, int low, int high,
                  const std::string& description);
  // One of some names, each of which stands for a value.
  template <typename T>
  Option add_choice(const std::string& name, T& value,
                    const std::vector<std::pair<std::string, std::type_identity_t<T>>>& choices,
                    const std::string& description) {
    const auto read = [=, &value](const std::string& text) {
      std::string all;
      for (const auto& [choice, meaning] : choices) {
        if (text == choice) {
          value = meaning;
          return Status();
        }
        all += (all.empty() ? "" : ", ") + choice;
      }
      return invalid_argument("'%s' must be one of %s", text.c_str(), all.c_str());
    };
    const auto is_default = [&](const auto& choice) { return choice.second == value; };
    return add_value(name, read, description)
        .show_default(std::find_if(choices.begin(), choices.end(), is_default)->first)
        .show_type("");
  }
  // One of some names, which the help lists.
  Option add_name(const std::string& name, std::string& value, const std::vector<std::string>& names,
                  const std::string& description);
  // Any text that is not empty: an empty value says that the option was not given.
  Option add_text(const std::string& name, std::string& value, const std::string& description);
  // The name of a file, or - for stdout, which is also meant where no name follows.
  Option add_output(const std::string& name, std::string& path, const std::string& description);
  Option add_flag(const std::string& name, bool& value, const std::string& description);

 protected:
  // Converts a text to a value; an error says what is wrong with it.
  using ReadValue = std::function<Status(const std::string& text)>;

  Option add_value(const std::string& name, const ReadValue& read, const std::string& description);

  CLI::App* app_;
  Work* work_;
};

// The command at the top.
class CommandLine : public Command {
 public:
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // What stands below the help.
  void set_footer(const std::string& text);
  // What --version prints.
  void set_version(const std::string& text);

  // Gives all options their values; the work is what the words ask for: that of the command that they name,
  // or to print the help or the version. The error says which word is wrong and why.
  Result<Work> parse(const std::vector<std::string>& words);
  // The command that was named, as the user named it.
  std::string name() const;

 private:
  std::unique_ptr<CLI::App> owner_;
  Work named_work_;
};

}  // namespace switchyard::tools
