// `switchyard bench attention`: attention by graph replay, over the shapes of the table in
// docs/performance.md.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>

#include "benchmarks/attention_bench.hpp"
#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/npy.hpp"
#include "files/output.hpp"
#include "options.hpp"
#include "report/progress.hpp"
#include "switchyard/detail/device/device.hpp"

namespace switchyard::tools {
namespace {

struct BenchOptions {
  std::string target = "auto";
  std::vector<int> head_dims;
  std::vector<int> lengths;
  int num_tokens = 0;
  int num_replays = 0;
  uint64_t seed = 1;
  std::string json;
  std::string inputs;
};

struct BenchReport {
  Target target = Target::kHost;
  std::string device;
  int num_replays = 0;
  std::vector<AttentionBenchResult> results;

  bool verified() const {
    return std::all_of(results.begin(), results.end(), [](const AttentionBenchResult& result) {
      return result.difference.first_bad.empty();
    });
  }
};

Status finish_options(BenchOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(check_target_option(options.target));
  if (options.target == "auto") options.target = num_cuda_devices() > 0 ? "cuda" : "host";
  const bool is_host = options.target == "host";
  const auto choose = [&](auto& value, auto for_host, auto for_cuda) {
    if (value == std::decay_t<decltype(value)>{}) value = is_host ? for_host : for_cuda;
  };
  choose(options.head_dims, std::vector<int>{64}, std::vector<int>{128, 64, 256});
  choose(options.lengths, std::vector<int>{64, 256}, std::vector<int>{512, 1024, 2048, 4096, 8192, 16384});
  choose(options.num_tokens, 256, 16384);
  choose(options.num_replays, 2, 10);
  for (const int head_dim : options.head_dims)
    if (head_dim != 64 && head_dim != 128 && head_dim != 256)
      return invalid_argument("--head-dims: %d must be 64, 128 or 256", head_dim);
  return check_output_names({{"--json", options.json}, {"--inputs", options.inputs}});
}

Status measure(const BenchOptions& options, BenchReport& report) {
  const std::vector<AttentionBenchCase> cases =
      attention_bench_cases(options.head_dims, options.num_tokens, options.lengths, options.target == "host");
  Progress progress(1 + static_cast<int>(cases.size()));
  progress.begin("preparing");
  Result<std::unique_ptr<World>> world = World::create({.target = target_choice(options.target)});
  if (!world.ok()) return world.status();
  report.target = world.value()->target();
  report.device = world.value()->rank(0).device_name();
  report.num_replays = options.num_replays;
  Result<std::unique_ptr<AttentionBench>> bench = AttentionBench::create(*world.value(), cases, options.seed);
  if (!bench.ok()) return bench.status();
  const std::vector<bf16>& period = bench.value()->period();
  if (!options.inputs.empty())
    SWITCHYARD_RETURN_IF_ERROR(write_npy({"--inputs", options.inputs}, {period.size()}, period));
  for (const AttentionBenchCase& bench_case : cases) {
    progress.begin(bench_case.group + ", " + bench_case.label);
    Result<AttentionBenchResult> result = bench.value()->time(bench_case, options.num_replays);
    if (!result.ok()) return result.status();
    report.results.push_back(std::move(result).value());
  }
  return Status();
}

void print_table(const BenchReport& report) {
  std::printf("attention on %s: %s, median of %d replays\n\n", to_string(report.target),
              report.device.c_str(), report.num_replays);
  std::printf("head_dim  kind     shape            time us   TFLOP/s   K/V TB/s   scheduler\n");
  for (const AttentionBenchResult& result : report.results) {
    std::printf("%8d  %-7s  %-14s %9.1f %9.1f %10.2f   %s%s\n", result.bench_case.attention_case.head_dim,
                result.bench_case.group.c_str(), result.bench_case.label.c_str(), result.timing.median_us,
                result.tflops(), result.kv_terabytes_per_second(), to_string(result.choice.scheduler),
                result.difference.first_bad.empty() ? "" : "   NOT VERIFIED");
    if (!result.difference.first_bad.empty())
      std::printf("          %s\n", result.difference.first_bad.c_str());
  }
}

std::string to_json(const BenchReport& report) {
  std::vector<JsonObject> results;
  for (const AttentionBenchResult& result : report.results) {
    const reference::AttentionCase& attention_case = result.bench_case.attention_case;
    JsonObject json;
    json.add("group", result.bench_case.group)
        .add("label", result.bench_case.label)
        .add("head_dim", attention_case.head_dim)
        .add("heads", attention_case.num_heads)
        .add("kv_heads", attention_case.num_kv_heads)
        .add("causal", attention_case.causal)
        .add("seq_lens", attention_case.query_lens)
        .add("kv_lens", attention_case.num_keys())
        .add("median_us", result.timing.median_us)
        .add("min_us", result.timing.min_us)
        .add("p95_us", result.timing.p95_us)
        .add("tflops", result.tflops())
        .add("kv_terabytes_per_second", result.kv_terabytes_per_second())
        .add("scheduler", to_string(result.choice.scheduler))
        .add("splits", result.choice.num_splits)
        .add("relative_error", result.difference.relative_error)
        .add("error_of_every", result.stride)
        .add("verified", result.difference.first_bad.empty());
    results.push_back(std::move(json));
  }
  JsonObject json;
  json.add("verified", report.verified())
      .add("target", to_string(report.target))
      .add("device", report.device)
      .add("replays", report.num_replays)
      .add("input_shifts",
           std::vector<int>(std::begin(AttentionBench::kShifts), std::end(AttentionBench::kShifts)))
      .add("results", std::move(results));
  return json.to_text();
}

Result<ExitCode> bench_and_report(BenchOptions& options) {
  BenchReport report;
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options));
  SWITCHYARD_RETURN_IF_ERROR(measure(options, report));
  if (options.json != "-" && options.inputs != "-") print_table(report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, to_json(report)));
  return report.verified() ? kVerified : kNotVerified;
}

}  // namespace

void add_bench_attention_command(Command& bench) {
  Command command = bench.add_command(
      "attention", "Attention by graph replay: full, causal, ragged and decoding, with a few rows verified");
  auto options = std::make_shared<BenchOptions>();
  add_target_option(command, options->target);
  command.add_list("--head-dims", options->head_dims, 64, 256, "Head dimensions [128,64,256; host 64]");
  command.add_list("--lengths", options->lengths, 1, 1 << 20,
                   "Queries of a sequence, a sweep [512,1024,..,16384; host 64,256]");
  command
      .add_number("--tokens", options->num_tokens, 1, 1 << 24,
                  "Queries of all sequences together [16384; host 256]")
      .hide_default();
  command
      .add_number("--replays", options->num_replays, 1, 100000,
                  "Replays of each graph; their median counts [10; host 2]")
      .hide_default();
  command.add_seed("--seed", options->seed, "All numbers follow from it");
  command.add_text("--inputs", options->inputs,
                   "Write the numbers that queries, keys and values repeat, each from its own of\n"
                   "input_shifts on, to FILE.npy (bf16 as uint16)");
  add_json_option(command, options->json);
  command.set_work([options] { return bench_and_report(*options); });
}

}  // namespace switchyard::tools
