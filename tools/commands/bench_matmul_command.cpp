// `switchyard bench matmul`: the grouped matmuls of an expert layer by graph replay, with a cold L2.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "benchmarks/matmul_bench.hpp"
#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "options.hpp"
#include "report/progress.hpp"
#include "switchyard/detail/device/device.hpp"

namespace switchyard::tools {
namespace {

enum class Tunings { kChosen, kAll };

struct BenchOptions {
  std::string target = "auto";
  MatmulElement element = MatmulElement::kBF16;
  int hidden = 0;
  int expert_width = 0;
  int num_experts = 0;
  std::vector<int> rows;
  Tunings tunings = Tunings::kChosen;
  int num_blocks = 0;
  int num_replays = 0;
  uint64_t seed = 1;
  std::string json;
};

struct BenchReport {
  Target target = Target::kHost;
  MatmulElement element = MatmulElement::kBF16;
  std::string device;
  int num_replays = 0;
  std::vector<MatmulBenchResult> results;

  bool verified() const {
    return std::all_of(results.begin(), results.end(),
                       [](const MatmulBenchResult& result) { return result.difference.first_bad.empty(); });
  }
};

Status finish_options(BenchOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(check_target_option(options.target));
  if (options.target == "auto") options.target = num_cuda_devices() > 0 ? "cuda" : "host";
  const bool is_host = options.target == "host";
  const auto choose = [&](auto& value, auto for_host, auto for_cuda) {
    if (value == std::decay_t<decltype(value)>{}) value = is_host ? for_host : for_cuda;
  };
  choose(options.hidden, 256, 7168);
  choose(options.expert_width, 128, 2048);
  choose(options.num_experts, 4, 32);
  choose(options.rows, std::vector<int>{8, 130}, std::vector<int>{8, 32, 128, 1024});
  choose(options.num_replays, 2, 20);
  const int multiple = 16 / bytes_of(options.element);
  if (options.hidden % multiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d", options.hidden, multiple);
  if (options.expert_width % multiple != 0)
    return invalid_argument("--expert-width: %d must be a multiple of %d", options.expert_width, multiple);
  return check_output_names({{"--json", options.json}});
}

std::vector<MatmulBenchCase> bench_cases(const BenchOptions& options) {
  std::vector<std::optional<MatmulTuning>> tunings{std::nullopt};
  if (options.tunings == Tunings::kAll) {
    tunings.clear();
    for (const MatmulTuning& tuning : kMatmulTunings)
      if (tuning.element == options.element) tunings.push_back(tuning);
  }
  std::vector<MatmulBenchCase> cases;
  for (const bool is_down : {false, true})
    for (const int rows : options.rows)
      for (const auto& tuning : tunings)
        cases.push_back({.name = is_down ? "down" : "gate_up",
                         .element = options.element,
                         .num_experts = options.num_experts,
                         .inner = is_down ? options.expert_width : options.hidden,
                         .columns = is_down ? options.hidden : 2 * options.expert_width,
                         .rows_per_expert = rows,
                         .tuning = tuning,
                         .num_blocks = options.num_blocks});
  return cases;
}

Status measure(const BenchOptions& options, BenchReport& report) {
  const std::vector<MatmulBenchCase> cases = bench_cases(options);
  Progress progress(1 + static_cast<int>(cases.size()));
  progress.begin("preparing");
  Result<std::unique_ptr<World>> world = World::create({.target = target_choice(options.target)});
  if (!world.ok()) return world.status();
  report.target = world.value()->target();
  report.device = world.value()->rank(0).device_name();
  report.num_replays = options.num_replays;
  report.element = options.element;
  Result<std::unique_ptr<MatmulBench>> bench = MatmulBench::create(*world.value(), cases, options.seed);
  if (!bench.ok()) return bench.status();
  for (const MatmulBenchCase& bench_case : cases) {
    progress.begin(bench_case.name + ", " + std::to_string(bench_case.rows_per_expert) + " rows per expert");
    Result<MatmulBenchResult> result = bench.value()->time(bench_case, options.num_replays);
    if (!result.ok()) return result.status();
    report.results.push_back(std::move(result).value());
  }
  return Status();
}

void print_table(const BenchReport& report) {
  std::printf("grouped matmul on %s: %s, %s, cold L2, median of %d replays\n\n", to_string(report.target),
              report.device.c_str(), to_string(report.element), report.num_replays);
  std::printf("shape          K      N  experts  rows each   time us   TFLOP/s     TB/s   tuning\n");
  for (const MatmulBenchResult& result : report.results) {
    const MatmulBenchCase& bench_case = result.bench_case;
    std::printf("%-8s  %6d %6d %8d %10d %9.1f %9.1f %8.2f   %s%s\n", bench_case.name.c_str(),
                bench_case.inner, bench_case.columns, bench_case.num_experts, bench_case.rows_per_expert,
                result.timing.median_us, result.tflops(), result.terabytes_per_second(),
                to_string(result.tuning).c_str(),
                result.difference.first_bad.empty() ? "" : "   NOT VERIFIED");
    if (!result.difference.first_bad.empty())
      std::printf("          %s\n", result.difference.first_bad.c_str());
  }
}

std::string to_json(const BenchReport& report) {
  std::vector<JsonObject> results;
  for (const MatmulBenchResult& result : report.results) {
    const MatmulBenchCase& bench_case = result.bench_case;
    JsonObject json;
    json.add("shape", bench_case.name)
        .add("inner", bench_case.inner)
        .add("columns", bench_case.columns)
        .add("experts", bench_case.num_experts)
        .add("rows_per_expert", bench_case.rows_per_expert)
        .add("tuning", to_string(result.tuning))
        .add("blocks", result.num_blocks)
        .add("median_us", result.timing.median_us)
        .add("min_us", result.timing.min_us)
        .add("p95_us", result.timing.p95_us)
        .add("tflops", result.tflops())
        .add("terabytes_per_second", result.terabytes_per_second())
        .add("relative_error", result.difference.relative_error())
        .add("verified", result.difference.first_bad.empty());
    results.push_back(std::move(json));
  }
  JsonObject json;
  json.add("verified", report.verified())
      .add("target", to_string(report.target))
      .add("device", report.device)
      .add("element", to_string(report.element))
      .add("replays", report.num_replays)
      .add("results", std::move(results));
  return json.to_text();
}

Result<ExitCode> bench_and_report(BenchOptions& options) {
  BenchReport report;
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options));
  SWITCHYARD_RETURN_IF_ERROR(measure(options, report));
  if (options.json != "-") print_table(report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, to_json(report)));
  return report.verified() ? kVerified : kNotVerified;
}

}  // namespace

void add_bench_matmul_command(Command& bench) {
  Command command = bench.add_command(
      "matmul",
      "Grouped matmuls of an expert layer by graph replay, with a cold L2 and a few outputs verified");
  auto options = std::make_shared<BenchOptions>();
  add_target_option(command, options->target);
  command.add_number("--hidden", options->hidden, 8, 1 << 20, "K of gate_up and N of down [7168; host 256]")
      .hide_default();
  command
      .add_number("--expert-width", options->expert_width, 8, 1 << 20,
                  "K of down, and half of gate_up's N [2048; host 128]")
      .hide_default();
  command.add_number("--experts", options->num_experts, 1, 4096, "Experts with rows [32; host 4]")
      .hide_default();
  command.add_choice("--element", options->element,
                     {{"bf16", MatmulElement::kBF16}, {"fp8", MatmulElement::kFP8}},
                     "What rows and weights hold: bf16, or fp8 with a scale per 128: bf16, fp8");
  command.add_list("--rows", options->rows, 1, 1 << 20,
                   "Rows of each expert, a sweep [8,32,128,1024; host 8,130]");
  command.add_choice("--tunings", options->tunings, {{"chosen", Tunings::kChosen}, {"all", Tunings::kAll}},
                     "The tile the library chooses, or every one: chosen, all");
  command.add_number("--blocks", options->num_blocks, 1, 4096, "Blocks of a launch [one per multiprocessor]")
      .hide_default();
  command
      .add_number("--replays", options->num_replays, 1, 100000,
                  "Replays of each graph; their median counts [20; host 2]")
      .hide_default();
  command.add_seed("--seed", options->seed, "All numbers follow from it");
  add_json_option(command, options->json);
  command.set_work([options] { return bench_and_report(*options); });
}

}  // namespace switchyard::tools
