#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace switchyard::tools {
namespace {

// The innermost command that was named.
const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// What is wrong with the words of a command line.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  std::string choices;
  for (const CLI::App* choice : named_command(app).get_subcommands([](const CLI::App*) { return true; }))
    choices += (choices.empty() ? "" : ", ") + choice->get_name();
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return choices.empty() ? error.what() : "a subcommand is required: " + choices;
  const std::string what = unknown.front().starts_with('-') ? "option"
                           : choices.empty()                ? "argument"
                                                            : "subcommand; there are " + choices;
  return unknown.front() + ": no such " + what;
}

Work print(const std::string& text) {
  return [text]() -> Result<ExitCode> {
    std::fputs(text.c_str(), stdout);
    return kVerified;
  };
}

// An empty text would mean what no option at all means, and a file without a name would be lost.
std::string refuse_empty(const std::string& text) { return text.empty() ? "'' must not be empty" : ""; }

}  // namespace

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}
Option& Option::show_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}
Option& Option::show_type(const std::string& text) {
  option_->type_name(text);
  return *this;
}
bool Option::is_given() const { return option_->count() > 0; }

Command Command::add_command(const std::string& name, const std::string& description) {
  app_->require_subcommand(1);
  return {app_->add_subcommand(name, description), work_};
}

void Command::set_work(Work work) {
  app_->callback([into = work_, work = std::move(work)] { *into = work; });
}

Option Command::add_value(const std::string& name, const ReadValue& read, const std::string& description) {
  const auto parse = [=](const std::string& text) {
    if (const Status status = read(text); !status.ok()) throw CLI::ValidationError(name, status.message());
  };
  return Option(app_->add_option_function<std::string>(name, parse, description));
}

Option Command::add_fraction(const std::string& name, double& value, double low, double high,
                             const std::string& description) {
  const auto text_of = [](double number) { return CLI::detail::to_string(number); };
  const std::string range = text_of(low) + ".." + text_of(high);
  const auto read = [=, &value](const std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(number >= low && number <= high))  // NaN is in no range
      return invalid_argument("'%s' must be a number %s", text.c_str(), range.c_str());
    value = number;
    return Status();
  };
  return add_value(name, read, description).show_default(text_of(value)).show_type(range);
}

Option Command::add_list(const std::string& name, std::vector<int>& values, int low, int high,
                         const std::string& description) {
  const auto parse = [=, &values](const std::vector<std::string>& texts) {
    values.clear();
    for (const std::string& text : texts)
      for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        int value = 0;
        if (!is_whole_number(text.substr(begin, end - begin), value) || value < low || value > high)
          throw CLI::ValidationError(name, "'" + text + "' must be whole numbers " + std::to_string(low) +
                                               ".." + std::to_string(high) +
                                               " with a comma between each two");
        values.push_back(value);
        begin = end + 1;
      }
  };
  return Option(app_->add_option_function<std::vector<std::string>>(name, parse, description))
      .show_type("INT,INT,..");
}

Option Command::add_name(const std::string& name, std::string& value, const std::vector<std::string>& names,
                         const std::string& description) {
  return Option(
      app_->add_option(name, value, description)->check(CLI::IsMember(names))->capture_default_str());
}

Option Command::add_text(const std::string& name, std::string& value, const std::string& description) {
  return Option(app_->add_option(name, value, description)->check(&refuse_empty)->capture_default_str());
}

Option Command::add_output(const std::string& name, std::string& path, const std::string& description) {
  // Where no value need follow, check() would let an empty one pass.
  const auto parse = [=, &path](const std::string& text) {
    if (text.empty()) throw CLI::ValidationError(name, refuse_empty(text));
    path = text;
  };
  return Option(app_->add_option_function<std::string>(name, parse, description)
                    ->expected(0, 1)
                    ->default_str("-")
                    ->type_name("FILE"));
}

Option Command::add_flag(const std::string& name, bool& value, const std::string& description) {
  return Option(app_->add_flag(name, value, description));
}

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : Command(new CLI::App(description, name), &named_work_), owner_(app_) {}
CommandLine::~CommandLine() = default;

void CommandLine::set_footer(const std::string& text) { app_->footer(text); }
void CommandLine::set_version(const std::string& text) { app_->set_version_flag("--version", text); }

Result<Work> CommandLine::parse(const std::vector<std::string>& words) {
  try {
    app_->parse(std::vector<std::string>(words.rbegin(), words.rend()));  // it takes words from the end
  } catch (const CLI::Success& request) {                                 // --help, --version
    std::ostringstream text;
    app_->exit(request, text, text);
    return print(text.str());
  } catch (const CLI::ParseError& error) {
    return invalid_argument("%s", describe(*app_, error).c_str());
  }
  return named_work_;
}

std::string CommandLine::name() const {
  std::string name = app_->get_name();
  for (const CLI::App* command = app_; !command->get_subcommands().empty();) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  return name;
}

}  // namespace switchyard::tools
