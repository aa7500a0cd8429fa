#include "options.hpp"

#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>

namespace switchyard::tools {
namespace {

template <typename T>
bool is_whole_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

void add_json_option(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "Write the report as JSON to FILE, or alone to stdout with -")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("FILE");
}

CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int>& values, int low,
                             int high, const std::string& description) {
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
  return command.add_option_function<std::vector<std::string>>(name, parse, description)
      ->type_name("INT,INT,..");
}

CLI::Option* add_seed_option(CLI::App& command, const std::string& name, uint64_t& seed,
                             const std::string& description) {
  const auto check = [](std::string& text) {
    uint64_t value = 0;
    return is_whole_number(text, value) ? ""
                                        : text + " must be a whole number 0.." + std::to_string(UINT64_MAX);
  };
  return command.add_option(name, seed, description)->check(CLI::Validator(check, ""))->capture_default_str();
}

void add_format_option(CLI::App& command, TokenFormatKind& format) {
  std::map<std::string, TokenFormatKind> formats;
  for (int i = 0; i < kNumTokenFormats; ++i)
    formats[to_string(static_cast<TokenFormatKind>(i))] = static_cast<TokenFormatKind>(i);
  command
      .add_option(
          "--format", format,
          "What tokens are sent as: bf16, fp8, fp8-e5m2, mxfp8, mxfp8-e5m2, mxfp6, mxfp6-e3m2, mxfp4, nvfp4, "
          "nvfp4-by-expert, mxfp8-tiled or mxfp4-tiled")
      ->transform(CLI::CheckedTransformer(formats).description(""))
      ->default_str(to_string(format));
}

void add_combine_format_option(CLI::App& command, CombineFormat& format) {
  static const std::map<std::string, CombineFormat> kNames = {{"bf16", CombineFormat::kBF16},
                                                              {"fp8", CombineFormat::kFP8}};
  command
      .add_option("--combine-format", format,
                  "What expert rows are sent back as: bf16, or fp8 with a scale per 128")
      ->transform(CLI::CheckedTransformer(kNames).description(""))
      ->default_str(to_string(format));
}

Status check_hidden_option(int hidden, TokenFormatKind format) {
  const Status status = check_hidden(format, hidden);
  return status.ok() ? Status() : invalid_argument("--hidden: %s", status.message().c_str());
}

void add_protocol_option(CLI::App& command, Protocol& protocol, const std::string& automatic) {
  static const std::map<std::string, Protocol> kNames = {
      {"automatic", Protocol::kAutomatic}, {"slotted", Protocol::kSlotted}, {"direct", Protocol::kDirect}};
  command
      .add_option("--protocol", protocol,
                  "How rows travel: slotted, direct, or automatic, which " + automatic)
      ->transform(CLI::CheckedTransformer(kNames).description(""))
      ->default_str(to_string(protocol));
}

Status check_output_file(const char* flag, const std::string& path) {
  if (path.empty() || path == "-" || std::ofstream(path, std::ios::app)) return Status();
  return invalid_argument("%s: cannot write %s", flag, path.c_str());
}

Status write_output_file(const char* flag, const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return Status();
  }
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status() : invalid_argument("%s: cannot write %s", flag, path.c_str());
}

}  // namespace switchyard::tools
