#include "options.hpp"

#include <cctype>
#include <cstdlib>
#include <string_view>

namespace switchyard::tools {

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

CLI::Option* add_fraction_option(CLI::App& command, const std::string& name, double& value, double low,
                                 double high, const std::string& description) {
  const auto name_of = [](double number) { return CLI::detail::to_string(number); };
  const std::string range = name_of(low) + ".." + name_of(high);
  const auto parse = [=, &value](const std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(number >= low && number <= high))  // NaN is in no range
      throw CLI::ValidationError(name, "'" + text + "' must be a number " + range);
    value = number;
  };
  return command.add_option_function<std::string>(name, parse, description)
      ->default_str(name_of(value))
      ->type_name(range);
}

CLI::Option* add_seed_option(CLI::App& command, const std::string& name, uint64_t& seed,
                             const std::string& description) {
  return add_number_option(command, name, seed, 0, UINT64_MAX, description)->type_name("SEED");
}

void add_target_option(CLI::App& command, std::string& target, const std::string& description) {
  command.add_option("--target", target, description)
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
}

Status check_target_option(const std::string& target) {
  if (target != "cuda" || num_cuda_devices() > 0) return Status();
  return invalid_argument("--target: cuda cannot run here: %s", why_no_cuda().c_str());
}

TargetChoice target_choice(const std::string& target) {
  return target == "host"   ? TargetChoice::kHost
         : target == "cuda" ? TargetChoice::kCuda
                            : TargetChoice::kAuto;
}

namespace {

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

Choices<TokenFormatKind> format_choices() {
  Choices<TokenFormatKind> choices;
  for (int i = 0; i < kNumTokenFormats; ++i)
    choices.emplace_back(to_string(static_cast<TokenFormatKind>(i)), static_cast<TokenFormatKind>(i));
  return choices;
}
const Choices<CombineFormat> kCombineFormats = {{"bf16", CombineFormat::kBF16}, {"fp8", CombineFormat::kFP8}};

// The same, or any of them.
template <typename T>
Choices<std::optional<T>> or_any(const Choices<T>& choices) {
  Choices<std::optional<T>> with_any(choices.begin(), choices.end());
  with_any.emplace_back("any", std::nullopt);
  return with_any;
}

}  // namespace

void add_format_option(CLI::App& command, TokenFormatKind& format) {
  add_choice_option(command, "--format", format, format_choices(),
                    "What tokens are sent as: bf16, fp8, fp8-e5m2, mxfp8, mxfp8-e5m2, mxfp6, mxfp6-e3m2, "
                    "mxfp4, nvfp4, nvfp4-by-expert, mxfp8-tiled or mxfp4-tiled");
}
void add_format_option(CLI::App& command, std::optional<TokenFormatKind>& format) {
  add_choice_option(command, "--format", format, or_any(format_choices()),
                    "What tokens are sent as: a format of `switchyard run`, or any, which draws one by seed");
}

void add_combine_format_option(CLI::App& command, CombineFormat& format) {
  add_choice_option(command, "--combine-format", format, kCombineFormats,
                    "What expert rows are sent back as: bf16, or fp8 with a scale per 128");
}
void add_combine_format_option(CLI::App& command, std::optional<CombineFormat>& format) {
  add_choice_option(command, "--combine-format", format, or_any(kCombineFormats),
                    "What expert rows are sent back as: bf16, fp8, or any, which draws one by seed");
}

Status with_flags(const Status& status) {
  if (status.ok()) return status;
  std::string message = status.message();
  for (const auto& [field, flag] :
       {std::pair("n_sms", "--n-sms"), std::pair("max_tokens_per_rank", "--tokens"),
        std::pair("top_k", "--top-k"), std::pair("hidden", "--hidden"),
        std::pair("capacity_factor", "--capacity-factor"), std::pair("num_threads", "--num-threads"),
        std::pair("enable_trace", "--trace")}) {
    const auto is_letter = [&](size_t place) {
      return place < message.size() &&
             (std::isalnum(static_cast<unsigned char>(message[place])) != 0 || message[place] == '_');
    };
    for (size_t place = message.find(field); place != std::string::npos;) {
      const size_t end = place + std::string_view(field).size();
      const bool is_word =
          !(place > 0 && (is_letter(place - 1) || message[place - 1] == '-')) && !is_letter(end);
      if (is_word) message.replace(place, end - place, flag);
      place = message.find(field, place + std::string_view(is_word ? flag : field).size());
    }
  }
  return Status(status.code(), message);
}

Status check_hidden_option(int hidden, TokenFormatKind format) {
  const Status status = check_hidden(format, hidden);
  return status.ok() ? Status() : invalid_argument("--hidden: %s", status.message().c_str());
}

void add_protocol_option(CLI::App& command, Protocol& protocol, const std::string& automatic) {
  add_choice_option<Protocol>(
      command, "--protocol", protocol,
      {{"automatic", Protocol::kAutomatic}, {"slotted", Protocol::kSlotted}, {"direct", Protocol::kDirect}},
      "How rows travel: slotted, direct, or automatic, which " + automatic);
}

}  // namespace switchyard::tools
