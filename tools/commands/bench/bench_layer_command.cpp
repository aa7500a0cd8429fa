// `switchyard bench layer`: whole layers by graph replay, and their parts.
#include <cstdio>
#include <memory>

#include "benchmarks/layer_bench.hpp"
#include "commands/commands.hpp"
#include "replay_bench.hpp"
#include "report/trace_file.hpp"

namespace switchyard::tools {
namespace {

struct BenchOptions : ReplayOptions {
  Workload workload;
  std::vector<int> tokens;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  WeightFormat weights = WeightFormat::kAsRows;
  Protocol protocol = Protocol::kAutomatic;
  int n_sms = 0;
  int num_matmul_blocks = 0;
  GateUpStart gate_up_start = GateUpStart::kBehindDispatch;
  CombineStart combine_start = CombineStart::kBehindExperts;
  bool dependent_launch = false;
  int prefetch_mib = 0;
  std::string trace;

  // A report that goes to stdout is alone there.
  bool prints_table() const { return json != "-" && trace != "-"; }
};

using BenchReport = ReplayReport<LayerBenchResult>;

MoeLayerConfig config_of(const BenchOptions& options) {
  MoeLayerConfig config{.weights = options.weights,
                        .expert_width = options.workload.expert_width,
                        .num_matmul_blocks = options.num_matmul_blocks,
                        .gate_up_start = options.gate_up_start,
                        .prefetch_bytes = int64_t{options.prefetch_mib} << 20};
  config.ep.n_experts = options.workload.n_experts;
  config.ep.top_k = options.workload.top_k;
  config.ep.hidden = options.workload.hidden;
  config.ep.n_sms = options.n_sms;
  config.ep.combine_start = options.combine_start;
  config.ep.dependent_launch = options.dependent_launch;
  config.ep.protocol = options.protocol;
  config.ep.dispatch_format = options.format;
  config.ep.combine_format = options.combine_format;
  if (info_of(options.format).encodes_by_expert)
    config.ep.expert_input_scales.assign(static_cast<size_t>(options.workload.n_experts), 1.0f);
  if (options.workload.has_shared_expert) config.ep.shared_expert = SharedExpert::kFused;
  return config;
}

Status finish_options(BenchOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(resolve_target_option(options.target));
  Workload& workload = options.workload;
  workload.seed = options.seed;
  set_default(workload.n_ranks, options.target, 2, 8);
  set_default(workload.hidden, options.target, 256, 7168);
  set_default(workload.expert_width, options.target, 128, 2048);
  set_default(workload.n_experts, options.target, 8, 256);
  set_default(workload.top_k, options.target, 2, 8);
  set_default(options.tokens, options.target, {16}, {16, 128, 1024});
  set_default(options.num_replays, options.target, 2, 20);
  SWITCHYARD_RETURN_IF_ERROR(check_gate_up_start(options.gate_up_start, options.format));
  if (options.gate_up_start == GateUpStart::kWithRows && options.protocol == Protocol::kSlotted)
    return invalid_argument("--gate-up-start: with-rows needs --protocol direct, not slotted");
  SWITCHYARD_RETURN_IF_ERROR(
      check_combine_start(options.combine_start, options.protocol, options.combine_format));
  SWITCHYARD_RETURN_IF_ERROR(check_hidden_option(workload.hidden, options.format, options.combine_format));
  SWITCHYARD_RETURN_IF_ERROR(check_weights_option(config_of(options)));
  const int multiple =
      matmul_rows_of(options.format, options.weights).element == MatmulElement::kFP8 ? 64 : 8;
  if (workload.expert_width % multiple != 0)
    return invalid_argument("--expert-width: %d must be a multiple of %d%s", workload.expert_width, multiple,
                            multiple == 64 ? " with weights in fp8" : "");
  if (workload.n_experts % workload.n_ranks != 0)
    return invalid_argument("--experts: %d must be a multiple of --ranks (%d)", workload.n_experts,
                            workload.n_ranks);
  if (workload.top_k > workload.n_experts)
    return invalid_argument("--top-k: %d must be at most --experts (%d)", workload.top_k, workload.n_experts);
  if (!options.trace.empty() && options.tokens.size() != 1)
    return invalid_argument("--trace: it has one step; --tokens must be one number, not %zu",
                            options.tokens.size());
  return check_output_names({{"--json", options.json}, {"--trace", options.trace}});
}

Status trace_step(const BenchOptions& options, const BenchReport& report, LayerBench& bench) {
  Result<LayerTrace> traced = bench.trace(options.tokens.front(), kMaxTraceEvents);
  if (!traced.ok()) return traced.status();
  if (!traced.value().missing.empty())
    std::fprintf(stderr, "switchyard bench layer: --trace: only the parts of the step: %s\n",
                 traced.value().missing.c_str());
  RunTrace trace{.target = report.target, .device = report.device, .ranks = std::move(traced.value().ranks)};
  for (TimedPhase& phase : traced.value().phases) trace.phases.push_back({0, std::move(phase)});
  return write_trace("bench layer", {"--trace", options.trace}, trace);
}

Status measure(const BenchOptions& options, BenchReport& report) {
  Progress progress(1 + static_cast<int>(options.tokens.size()));
  progress.begin("preparing " + std::to_string(options.workload.n_experts) + " experts");
  Result<std::unique_ptr<World>> world =
      World::create({.target = target_choice(options.target), .n_ranks = options.workload.n_ranks});
  if (!world.ok()) return world.status();
  begin_report(*world.value(), options, report);
  MoeLayerConfig config = config_of(options);
  config.ep.timeout_ns = default_timeout_ns(report.target);
  Result<std::unique_ptr<LayerBench>> bench = LayerBench::create(*world.value(), options.workload, config);
  if (!bench.ok()) return bench.status();
  const auto label_of = [](int num_tokens) { return std::to_string(num_tokens) + " tokens per rank"; };
  SWITCHYARD_RETURN_IF_ERROR(time_each(*bench.value(), options.tokens, label_of, progress, report));
  return options.trace.empty() ? Status() : trace_step(options, report, *bench.value());
}

void print_table(const BenchOptions& options, const BenchReport& report) {
  const Workload& workload = options.workload;
  std::printf(
      "layer on %s: %s, %s%s%s%s, %d ranks, hidden %d, %d experts%s of width %d, top-%d, median of %d "
      "replays\n\n",
      to_string(report.target), report.device.c_str(), to_string(options.format),
      is_coded(options.weights) ? ", weights " : "",
      is_coded(options.weights) ? to_string(options.weights) : "",
      options.combine_format == CombineFormat::kBF16 ? "" : ", combine in fp8", workload.n_ranks,
      workload.hidden, workload.n_experts, workload.has_shared_expert ? " and a shared one" : "",
      workload.expert_width, workload.top_k, report.num_replays);
  std::printf(
      "tokens   step us     route  dispatch   gate_up      down   combine   TFLOP/s   weights TB/s  error\n");
  for (const LayerBenchResult& result : report.results) {
    std::printf("%6d %9.1f", result.num_tokens, result.step.median_us);
    for (const auto& [name, timing] : result.parts) std::printf(" %9.1f", timing.median_us);
    std::printf(" %9.1f %14.2f %6.4f%s\n", result.tflops(), result.weight_terabytes_per_second(),
                result.error, result.is_verified() ? "" : "   NOT VERIFIED");
    std::printf("       %s, gate_up %s, down %s\n", to_string(result.protocol), result.gate_up_tuning.c_str(),
                result.down_tuning.c_str());
  }
}

std::string to_json(const BenchOptions& options, const BenchReport& report) {
  std::vector<JsonObject> results;
  for (const LayerBenchResult& result : report.results) {
    JsonObject parts, json;
    for (const auto& [name, timing] : result.parts) parts.add(name, timing.median_us);
    json.add("tokens", result.num_tokens)
        .add("protocol", to_string(result.protocol))
        .add("gate_up_tuning", result.gate_up_tuning)
        .add("down_tuning", result.down_tuning);
    add_timing(json, result.step);
    json.add("parts", std::move(parts))
        .add("matmul_us", result.matmul_us())
        .add("tflops", result.tflops())
        .add("weight_bytes", result.weight_bytes)
        .add("weight_terabytes_per_second", result.weight_terabytes_per_second())
        .add("relative_error", result.error)
        .add("verified", result.is_verified());
    results.push_back(std::move(json));
  }
  const Workload& workload = options.workload;
  JsonObject json = json_head(report);
  json.add("format", to_string(options.format))
      .add("combine_format", to_string(options.combine_format))
      .add("weights", to_string(options.weights))
      .add("ranks", workload.n_ranks)
      .add("hidden", workload.hidden)
      .add("experts", workload.n_experts)
      .add("expert_width", workload.expert_width)
      .add("top_k", workload.top_k)
      .add("gate_up_start", name_of(options.gate_up_start))
      .add("combine_start", to_string(options.combine_start))
      .add("dependent_launch", options.dependent_launch)
      .add("prefetch_mib", options.prefetch_mib)
      .add("results", std::move(results));
  return json.to_text();
}

}  // namespace

void add_bench_layer_command(Command& bench) {
  Command command = bench.add_command(
      "layer",
      "Whole layers, from router to output, and their parts, by graph replay, with a token verified");
  auto options = std::make_shared<BenchOptions>();
  Workload& workload = options->workload;
  workload.n_ranks = workload.hidden = workload.top_k = workload.n_experts = workload.expert_width = 0;
  add_target_option(command, options->target);
  add_format_option(command, options->format);
  add_combine_format_option(command, options->combine_format);
  add_weights_option(command, options->weights);
  add_protocol_option(command, options->protocol, "as the library chooses");
  command.add_number("--ranks", workload.n_ranks, 1, kMaxDirectRanks, "Ranks [8; host 2]").hide_default();
  command.add_list("--tokens", options->tokens, 1, kMaxTokensPerRank,
                   "Tokens per rank, a sweep [16,128,1024; host 16]");
  command
      .add_number("--hidden", workload.hidden, kHiddenMultiple, kMaxHidden,
                  "Elements of a token [7168; host 256]")
      .hide_default();
  command.add_number("--experts", workload.n_experts, 1, kMaxExperts, "Experts of all ranks [256; host 8]")
      .hide_default();
  command
      .add_number("--expert-width", workload.expert_width, 8, 1 << 20, "Width of an expert [2048; host 128]")
      .hide_default();
  command.add_number("--top-k", workload.top_k, 1, kMaxTopK, "Experts per token [8; host 2]").hide_default();
  command.add_flag("--shared-expert", workload.has_shared_expert, "One expert more, for every token");
  command.add_number("--n-sms", options->n_sms, 1, 65535, "Blocks of dispatch and combine per rank [chosen]")
      .hide_default();
  command
      .add_number("--matmul-blocks", options->num_matmul_blocks, 1, 4096,
                  "Blocks of a matmul per rank [one per multiprocessor]")
      .hide_default();
  add_gate_up_start_option(command, options->gate_up_start);
  add_combine_start_option(command, options->combine_start);
  command.add_flag("--dependent-launch", options->dependent_launch,
                   "CUDA: launches may take their places before their predecessors have ended");
  command.add_number("--prefetch-mib", options->prefetch_mib, 0, 1024,
                     "CUDA: MiB of each matmul's weights that the launches in front of it ask for");
  command
      .add_text("--trace", options->trace,
                "Write what each rank and each block of dispatch and combine did in one more step, which is\n"
                "no graph, to FILE, for Perfetto or chrome://tracing, or alone to stdout with -")
      .show_type("FILE");
  finish_replay_command<BenchReport>(command, options, "[20; host 2]");
}

}  // namespace switchyard::tools
