// `switchyard bench formats`: what each number format costs in bits and loses in accuracy.
#include <cstdio>
#include <memory>

#include "benchmarks/format_accuracy.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"

namespace switchyard::tools {
namespace {

struct FormatsOptions {
  uint64_t seed = 1;
  int num_values = 1 << 20;
  std::string json;
};

void print_accuracy(const FormatsOptions& options, const std::vector<FormatAccuracy>& formats) {
  std::printf("Switchyard: what number formats lose, in %%, over %d values of each kind, seed %llu\n\n",
              options.num_values, static_cast<unsigned long long>(options.seed));
  std::printf("  rms       rms of the errors, by the rms of the values\n");
  std::printf("  element   rms of each element's error by the element itself\n");
  std::printf("  max       largest error, by the largest magnitude of its group\n\n");
  std::printf("  %-18s  %5s", "", "");
  for (const InputKind kind : kInputKinds) std::printf("  | %-25s", to_string(kind));
  std::printf("\n  %-18s  %5s", "format", "bits");
  for (size_t i = 0; i < std::size(kInputKinds); ++i)
    std::printf("  | %7s  %7s  %7s", "rms", "element", "max");
  std::printf("\n");
  for (const FormatAccuracy& format : formats) {
    std::printf("  %-18s  %5.2f", format.format.c_str(), format.bits_per_element);
    for (const FormatError& error : format.errors)
      std::printf("  | %7.3f  %7.3f  %7.3f", 100 * error.rms, 100 * error.element, 100 * error.largest);
    std::printf("\n");
  }
}

std::string to_json(const FormatsOptions& options, const std::vector<FormatAccuracy>& formats) {
  std::vector<JsonObject> results;
  for (const FormatAccuracy& format : formats)
    for (size_t i = 0; i < format.errors.size(); ++i)
      results.push_back(std::move(JsonObject()
                                      .add("format", format.format)
                                      .add("bits_per_element", format.bits_per_element)
                                      .add("input", to_string(kInputKinds[i]))
                                      .add("rms_error", format.errors[i].rms)
                                      .add("rms_element_error", format.errors[i].element)
                                      .add("max_error_of_group_amax", format.errors[i].largest)));
  return JsonObject()
      .add("seed", options.seed)
      .add("values", options.num_values)
      .add("formats", std::move(results))
      .to_text();
}

Result<ExitCode> report_accuracy(const FormatsOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(check_output_names({{"--json", options.json}}));
  if (options.num_values % kAccuracyGroup != 0)
    return invalid_argument("--values: %d is no multiple of %d", options.num_values, kAccuracyGroup);
  const std::vector<FormatAccuracy> formats = measure_format_accuracy(options.seed, options.num_values);
  if (options.json != "-") print_accuracy(options, formats);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, to_json(options, formats)));
  return kVerified;
}

}  // namespace

void add_bench_formats_command(Command& bench) {
  Command command = bench.add_command(
      "formats", "Number formats: bits per element, and errors on normal, heavy-tailed and outlier values");
  auto options = std::make_shared<FormatsOptions>();
  command.add_seed("--seed", options->seed, "All values follow from it");
  command.add_number("--values", options->num_values, kAccuracyGroup, 1 << 26,
                     "Values of each kind, a multiple of 128");
  add_json_option(command, options->json);
  command.set_work([options] { return report_accuracy(*options); });
}

}  // namespace switchyard::tools
