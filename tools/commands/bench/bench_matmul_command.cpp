// `switchyard bench matmul`: the grouped matmuls of an expert layer by graph replay, with a cold L2.
#include <cstdio>
#include <memory>

#include "benchmarks/matmul_bench.hpp"
#include "commands/commands.hpp"
#include "replay_bench.hpp"

namespace switchyard::tools {
namespace {

enum class Tunings { kChosen, kAll };
enum class Epilogues { kNone, kFused };

// What weights hold. Rows hold the same, or bf16 where weights are coded.
enum class Weights { kBF16, kFP8, kMXFP4, kNVFP4, kMXFP8 };

struct BenchOptions : ReplayOptions {
  Weights weights = Weights::kBF16;
  int hidden = 0;
  int expert_width = 0;
  int num_experts = 0;
  std::vector<int> rows;
  Tunings tunings = Tunings::kChosen;
  Epilogues epilogues = Epilogues::kNone;
  int num_blocks = 0;

  MatmulElement element() const {
    return weights == Weights::kFP8 ? MatmulElement::kFP8 : MatmulElement::kBF16;
  }
  WeightFormat weight_format() const {
    return weights == Weights::kMXFP4   ? WeightFormat::kMXFP4
           : weights == Weights::kNVFP4 ? WeightFormat::kNVFP4
           : weights == Weights::kMXFP8 ? WeightFormat::kMXFP8
                                        : WeightFormat::kAsRows;
  }
  const char* weights_name() const {
    return is_coded(weight_format()) ? to_string(weight_format()) : to_string(element());
  }
};

using BenchReport = ReplayReport<MatmulBenchResult>;

Status finish_options(BenchOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(resolve_target_option(options.target));
  set_default(options.hidden, options.target, 256, 7168);
  set_default(options.expert_width, options.target, 128, 2048);
  set_default(options.num_experts, options.target, 4, 32);
  set_default(options.rows, options.target, {8, 130}, {8, 32, 128, 1024});
  set_default(options.num_replays, options.target, 2, 20);
  const int multiple = is_coded(options.weight_format()) ? inner_multiple_of(options.weight_format())
                                                         : 16 / bytes_of(options.element());
  if (options.epilogues == Epilogues::kFused && options.element() == MatmulElement::kFP8 &&
      options.expert_width % (kMatmulScaleGroup / 2) != 0)
    return invalid_argument("--expert-width: %d must be a multiple of %d with --epilogue fused in fp8",
                            options.expert_width, kMatmulScaleGroup / 2);
  if (options.hidden % multiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d", options.hidden, multiple);
  if (options.expert_width % multiple != 0)
    return invalid_argument("--expert-width: %d must be a multiple of %d", options.expert_width, multiple);
  return check_output_names({{"--json", options.json}});
}

// Fused: SiLU and multiply in gate_up, which stores what down reads; a weight of each row in down.
MatmulEpilogue epilogue_of(const BenchOptions& options, bool is_down) {
  if (options.epilogues == Epilogues::kNone) return MatmulEpilogue::kPlain;
  if (is_down) return MatmulEpilogue::kAffine;
  return options.element() == MatmulElement::kFP8 ? MatmulEpilogue::kGatedFP8 : MatmulEpilogue::kGated;
}

std::vector<MatmulBenchCase> bench_cases(const BenchOptions& options) {
  std::vector<MatmulBenchCase> cases;
  for (const bool is_down : {false, true}) {
    const MatmulEpilogue epilogue = epilogue_of(options, is_down);
    std::vector<std::optional<MatmulTuning>> tunings{std::nullopt};
    if (options.tunings == Tunings::kAll) {
      tunings.clear();
      for (const MatmulTuning& tuning : kMatmulTunings)
        if (tuning.element == options.element() && tuning.weights == options.weight_format() &&
            has_matmul_kernel(epilogue, tuning))
          tunings.push_back(tuning);
    }
    for (const int rows : options.rows)
      for (const auto& tuning : tunings)
        cases.push_back({.name = is_down ? "down" : "gate_up",
                         .element = options.element(),
                         .weights = options.weight_format(),
                         .num_experts = options.num_experts,
                         .inner = is_down ? options.expert_width : options.hidden,
                         .columns = is_down ? options.hidden : 2 * options.expert_width,
                         .rows_per_expert = rows,
                         .epilogue = epilogue,
                         .tuning = tuning,
                         .num_blocks = options.num_blocks});
  }
  return cases;
}

Status measure(const BenchOptions& options, BenchReport& report) {
  const auto label_of = [](const MatmulBenchCase& bench_case) {
    return bench_case.name + ", " + std::to_string(bench_case.rows_per_expert) + " rows per expert";
  };
  const auto prepare_nothing = [](MatmulBench&) { return Status(); };
  return time_cases<MatmulBench>(options, bench_cases(options), label_of, prepare_nothing, report);
}

void print_table(const BenchOptions& options, const BenchReport& report) {
  std::printf("grouped matmul on %s: %s, %s%s, cold L2, median of %d replays\n\n", to_string(report.target),
              report.device.c_str(), options.weights_name(),
              options.epilogues == Epilogues::kFused ? ", fused epilogues" : "", report.num_replays);
  std::printf(
      "shape          K      N  experts  rows each   time us   TFLOP/s       MB     TB/s  limit us   "
      "tuning\n");
  for (const MatmulBenchResult& result : report.results) {
    const MatmulBenchCase& bench_case = result.bench_case;
    std::printf("%-8s  %6d %6d %8d %10d %9.1f %9.1f %8.1f %8.2f %9.1f   %s", bench_case.name.c_str(),
                bench_case.inner, bench_case.columns, bench_case.num_experts, bench_case.rows_per_expert,
                result.timing.median_us, result.tflops(), static_cast<double>(result.timing.bytes) * 1e-6,
                result.terabytes_per_second(), result.limit_us(), to_string(result.tuning).c_str());
    end_table_line(result.difference.first_bad);
  }
  std::printf("\nlimit: the bytes at the bandwidth of a kernel that only reads the weights\n");
}

std::string to_json(const BenchOptions& options, const BenchReport& report) {
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
        .add("blocks", result.num_blocks);
    add_timing(json, result.timing);
    json.add("tflops", result.tflops())
        .add("terabytes_per_second", result.terabytes_per_second())
        .add("bytes", result.timing.bytes)
        .add("read_terabytes_per_second", result.read_terabytes_per_second())
        .add("limit_us", result.limit_us())
        .add("relative_error", result.difference.relative_error())
        .add("verified", result.is_verified());
    results.push_back(std::move(json));
  }
  JsonObject json = json_head(report);
  json.add("weights", options.weights_name())
      .add("epilogue", options.epilogues == Epilogues::kFused ? "fused" : "none")
      .add("results", std::move(results));
  return json.to_text();
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
  command.add_choice("--weights", options->weights,
                     {{"bf16", Weights::kBF16},
                      {"fp8", Weights::kFP8},
                      {"mxfp4", Weights::kMXFP4},
                      {"nvfp4", Weights::kNVFP4},
                      {"mxfp8", Weights::kMXFP8}},
                     "What weights hold; rows hold the same for bf16 and for fp8 with a scale per 128, else "
                     "bf16: bf16, fp8, mxfp4, nvfp4, mxfp8");
  command.add_list("--rows", options->rows, 1, 1 << 20,
                   "Rows of each expert, a sweep [8,32,128,1024; host 8,130]");
  command.add_choice("--tunings", options->tunings, {{"chosen", Tunings::kChosen}, {"all", Tunings::kAll}},
                     "The tile the library chooses, or every one: chosen, all");
  command.add_choice(
      "--epilogue", options->epilogues, {{"none", Epilogues::kNone}, {"fused", Epilogues::kFused}},
      "Sums as they are; or SiLU and multiply in gate_up, a weight per row in down: none, fused");
  command.add_number("--blocks", options->num_blocks, 1, 4096, "Blocks of a launch [one per multiprocessor]")
      .hide_default();
  finish_replay_command<BenchReport>(command, options, "[20; host 2]");
}

}  // namespace switchyard::tools
