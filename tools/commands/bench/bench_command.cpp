// `switchyard bench ep`: times of dispatch and combine by graph replay, over a sweep of token counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "bench_processes.hpp"
#include "commands/commands.hpp"
#include "commands/merged_report.hpp"
#include "commands/options.hpp"
#include "files/output.hpp"
#include "files/text_file.hpp"
#include "report/bench_report.hpp"
#include "report/progress.hpp"

namespace switchyard::tools {
namespace {

// Zero and empty mean: as the target suggests.
struct BenchOptions {
  std::string target = "auto";
  int n_ranks = 8;
  EpLaunch launch;
  std::string protocol = "automatic";
  int hidden = 0;
  int top_k = 8;
  int n_experts = 0;
  std::vector<int> tokens;
  std::string mode = "both";
  int num_replays = 0;
  std::string routing = "uniform";
  uint64_t seed = 1;
  int64_t repeat_check = 0;
  std::string transport = "local";
  std::string rendezvous;  // where the processes of the ranks meet
  int rank = -1;           // of this process; -1: it has all of them
  bool is_joined = false;  // this process is one of several that the ranks are in
  bool ranks_given = false;
  std::string rank_reports;  // a file of what the processes of SHMEM have measured
  std::string json;
  std::string svg;

  bool is_by_shmem() const { return transport == "shmem"; }
  bool compares_transports() const { return transport != "local" || is_joined; }
  // As many in all with a process for every rank as without: one each, or each rank's share of the cores. A
  // process that joins by SHMEM does not know yet how many ranks there are.
  HostDeviceOptions host() const {
    const unsigned num_ranks = static_cast<unsigned>(n_ranks),
                   num_cores = std::thread::hardware_concurrency();
    const unsigned share = is_by_shmem() ? 1 : std::max(1u, num_cores / num_ranks);
    return {.num_workers = !compares_transports() ? 0 : is_joined ? share : share * num_ranks};
  }

  std::vector<StepMode> modes() const {
    if (mode == "both") return {StepMode::kSplit, StepMode::kFused};
    return {mode == "fused" ? StepMode::kFused : StepMode::kSplit};
  }
  std::vector<Protocol> protocols() const {
    if (protocol == "both") return {Protocol::kSlotted, Protocol::kDirect};
    return {protocol == "slotted"  ? Protocol::kSlotted
            : protocol == "direct" ? Protocol::kDirect
                                   : Protocol::kAutomatic};
  }
};

Status finish_options(BenchOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(resolve_target_option(options.target));
  set_default(options.launch.n_sms, options.target, 4, 16);
  set_default(options.hidden, options.target, 512, 7168);
  set_default(options.n_experts, options.target, 32, 256);
  set_default(options.num_replays, options.target, 3, 100);
  set_default(options.tokens, options.target, {1, 8, 32}, {1, 16, 128, 1024, 4096});
  if (options.n_experts % options.n_ranks != 0)
    return invalid_argument("--experts: %d must be a multiple of --ranks (%d)", options.n_experts,
                            options.n_ranks);
  if (options.hidden % kHiddenMultiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d", options.hidden, kHiddenMultiple);
  SWITCHYARD_RETURN_IF_ERROR(
      check_hidden_option(options.hidden, options.launch.format, options.launch.combine_format));
  SWITCHYARD_RETURN_IF_ERROR(check_groups_option(options.launch.p2p_world_size, options.n_ranks, false));
  if ((options.rank >= 0) != !options.rendezvous.empty())
    return invalid_argument("--rank, --rendezvous: a process that joins others needs both");
  if (options.rank >= options.n_ranks)
    return invalid_argument("--rank: %d must be below --ranks (%d)", options.rank, options.n_ranks);
  if (options.compares_transports() && options.repeat_check > 0)
    return invalid_argument("--repeat-check: it has the local transport only; --transport must be local");
  if (options.top_k > options.n_experts)
    return invalid_argument("--top-k: %d must be at most --experts (%d)", options.top_k, options.n_experts);
  return check_output_names({{"--json", options.json}, {"--svg", options.svg}});
}

Workload workload_of(const BenchOptions& options, int tokens_per_rank) {
  Workload workload;
  workload.n_ranks = options.n_ranks;
  workload.tokens_per_rank.assign(static_cast<size_t>(options.n_ranks), tokens_per_rank);
  workload.hidden = options.hidden;
  workload.top_k = options.top_k;
  workload.n_experts = options.n_experts;
  workload.routing = options.routing == "zipf"         ? RoutingKind::kZipf
                     : options.routing == "one-expert" ? RoutingKind::kOneExpert
                                                       : RoutingKind::kUniform;
  workload.seed = options.seed;
  return workload;
}

PlanLayout plan_layout(RowLayout layout) {
  switch (layout) {
    case RowLayout::kRagged:
      return PlanLayout::kRagged;
    case RowLayout::kMasked:
      return PlanLayout::kMasked;
    case RowLayout::kPerRank:
      return PlanLayout::kPerRank;
  }
  return PlanLayout::kRagged;
}

// As `switchyard plan` predicts the step: with links between all ranks, or a NIC for each.
std::optional<StepPlan> predict(const EpBench& bench, int ranks_per_node) {
  const ExpertParallelConfig& config = bench.ep().config();
  const int n_ranks = bench.ep().n_ranks();
  const PlanLayout layout = plan_layout(config.row_layout);
  const auto message_of = [&](bool is_one_per_rank) {
    return is_one_per_rank || layout == PlanLayout::kPerRank ? PlanMessage::kRank : PlanMessage::kExpert;
  };
  PlanRouting routing;
  routing.step = {n_ranks, config.n_experts, config.top_k, config.hidden, {}, bench.ids(), {}};
  const Result<StepPlan> plan =
      plan_step({.max_tokens_per_rank = config.max_tokens_per_rank,
                 .hidden = config.hidden,
                 .n_experts = config.n_experts,
                 .top_k = config.top_k,
                 .n_sms = config.n_sms,
                 .protocol = config.protocol,
                 .format = config.dispatch_format,
                 .combine_format = config.combine_format,
                 .layout = layout,
                 .message = message_of(config.row_delivery == RowDelivery::kReceiver),
                 .combine_message = message_of(config.reduce_at_owner)},
                {.n_ranks = n_ranks, .ranks_per_node = ranks_per_node}, routing, bench.ep().placement());
  if (!plan.ok()) return {};
  return plan.value();
}

Status measure_steps(World& world, const BenchOptions& options, Protocol protocol, Progress& progress,
                     SizeResult& size) {
  const std::string label = std::to_string(size.tokens_per_rank) + " tokens per rank: ";
  progress.begin(label + "preparing");
  EpLaunch launch = options.launch;
  launch.protocol = protocol;
  launch.is_stamped = options.is_joined;
  Result<std::unique_ptr<EpBench>> created =
      EpBench::create(world, workload_of(options, size.tokens_per_rank), launch, options.num_replays);
  if (!created.ok()) return created.status();
  EpBench& bench = *created.value();
  size.p2p_world_size = bench.ep().config().p2p_world_size;
  size.num_sets = bench.num_sets();
  size.exchange_bytes_per_rank = bench.ep().bytes_per_rank();
  const int n_ranks = bench.ep().n_ranks();
  size.traffic.push_back({bench.ep().config().protocol, bench.traffic(), bench.ep().bytes_per_rank(),
                          predict(bench, n_ranks), n_ranks > 1 ? predict(bench, 1) : std::nullopt});
  for (const StepMode mode : options.modes()) {
    progress.begin(label + to_string(mode));
    if (options.repeat_check > 0) {
      Result<RepeatCheck> check = bench.repeat(mode, options.repeat_check, [&](int64_t num_done) {
        progress.note(label + to_string(mode) + ", " + std::to_string(num_done) + " of " +
                      std::to_string(options.repeat_check) + " replays");
      });
      if (!check.ok()) return check.status();
      size.repeats.push_back(check.value());
    } else {
      Result<std::vector<PhaseTime>> times = bench.time(mode, options.num_replays);
      if (!times.ok()) return times.status();
      size.times.insert(size.times.end(), times.value().begin(), times.value().end());
      if (!options.compares_transports()) continue;
      Result<PhaseTime> back_to_back = bench.time_back_to_back(mode, options.num_replays);
      if (!back_to_back.ok()) return back_to_back.status();
      size.times.push_back(std::move(back_to_back).value());
    }
  }
  if (size.first_difference.empty()) size.first_difference = bench.first_difference();
  return Status();
}

// What does not fit is left out, with the reason. The limits come last, when the steps' memory is free.
Status measure_size(World& world, const BenchOptions& options, Progress& progress, SizeResult& size) {
  Status status;
  for (const Protocol protocol : options.protocols())
    if (status.ok()) status = measure_steps(world, options, protocol, progress, size);
  if (status.code() == StatusCode::kResourceExhausted && size.times.empty() && size.repeats.empty()) {
    size.why_skipped = status.message();
    return Status();
  }
  if (!status.ok() || options.repeat_check > 0 || options.is_joined) return status;
  // They move a row for every choice, which rows per rank do not.
  if (options.launch.row_layout == RowLayout::kPerRank) return Status();
  progress.begin(std::to_string(size.tokens_per_rank) + " tokens per rank: limits");
  Result<Limits> limits =
      measure_limits(world, workload_of(options, size.tokens_per_rank), options.launch, options.num_replays);
  if (limits.status().code() == StatusCode::kResourceExhausted) return Status();
  if (!limits.ok()) return limits.status();
  size.limits = limits.value();
  return Status();
}

Result<std::unique_ptr<World>> make_world(const BenchOptions& options) {
  const TargetChoice target = target_choice(options.target);
  if (!options.is_joined)
    return World::create({.target = target, .n_ranks = options.n_ranks, .host = options.host()});
  if (options.is_by_shmem())
    return World::join({.transport = TransportChoice::kShmem, .target = target, .host = options.host()});
  return World::join({.target = target,
                      .rank = options.rank,
                      .n_ranks = options.n_ranks,
                      .host = options.host(),
                      .rendezvous = options.rendezvous});
}

Status measure(const BenchOptions& options, World& world, BenchReport& report) {
  const int units_per_size = (options.repeat_check == 0 ? 1 : 0) +
                             static_cast<int>(options.protocols().size() * (1 + options.modes().size()));
  Progress progress(1 + static_cast<int>(options.tokens.size()) * units_per_size);
  if (!world.is_local(0)) progress.hide();
  progress.begin("copy bandwidth");
  report.target = world.target();
  report.device = world.rank(world.local_ranks().front()).device_name();
  report.workload = workload_of(options, 0);
  report.routing = options.routing;
  report.n_sms = options.launch.n_sms;
  report.p2p_world_size = options.launch.p2p_world_size;
  report.row_layout = options.launch.row_layout;
  report.row_alignment = options.launch.row_alignment;
  report.max_rows_per_expert = options.launch.max_rows_per_expert;
  report.row_delivery = options.launch.row_delivery;
  report.format = options.launch.format;
  report.combine_format = options.launch.combine_format;
  report.num_replays = options.num_replays;
  report.lead_us = options.launch.lead_us;
  if (options.repeat_check == 0 && !options.is_joined) {
    Result<CopyBandwidth> copy = measure_copy(world);
    if (!copy.ok()) return copy.status();
    report.copy = copy.value();
  }
  for (const int tokens : options.tokens) {
    SizeResult& size = report.sizes.emplace_back();
    size.tokens_per_rank = tokens;
    if (Status status = measure_size(world, options, progress, size); !status.ok())
      return Status(status.code(), std::to_string(tokens) + " tokens per rank: " + status.message());
    if (size.why_skipped.empty()) report.p2p_world_size = size.p2p_world_size;
  }
  return Status();
}

Status measure_here(const BenchOptions& options, BenchReport& report) {
  const auto begin = std::chrono::steady_clock::now();
  Result<std::unique_ptr<World>> world = make_world(options);
  if (!world.ok()) return world.status();
  if (options.is_joined)
    report.join_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return measure(options, *world.value(), report);
}

// The same once more with a process for every rank, each this command with its rank.
Result<ExitCode> measure_in_processes(const BenchOptions& options, BenchReport& report) {
  const Result<std::vector<RankOutcome>> outcomes =
      run_rank_processes(options.n_ranks, own_arguments_without({"--transport", "--json", "--svg"}));
  if (!outcomes.ok()) return outcomes.status();
  report.transport = options.transport;
  return merge_bench_outcomes(outcomes.value(), report);
}

Result<ExitCode> print_report(const BenchOptions& options, const BenchReport& report) {
  if (options.json != "-" && options.svg != "-") print_table(report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, to_json(report)));
  if (!options.svg.empty()) SWITCHYARD_RETURN_IF_ERROR(write_output({"--svg", options.svg}, to_svg(report)));
  if (!report.anything_ran()) return resource_exhausted("every size was skipped, so nothing was run");
  return report.verified() ? kVerified : kNotVerified;
}

// What all processes have measured together that a launcher has started. SHMEM ends with the world.
Result<ExitCode> measure_by_shmem(BenchOptions& options, BenchReport& own,
                                  std::vector<std::string>& rank_jsons, bool& is_first) {
  const auto begin = std::chrono::steady_clock::now();
  options.is_joined = true;
  const Result<std::unique_ptr<World>> joined = make_world(options);
  if (!joined.ok()) return with_flags(joined.status());
  own.join_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  World& world = *joined.value();
  is_first = world.is_local(0);
  const Status refusal = finish_launched_options(world, options.ranks_given, options.n_ranks,
                                                 [&] { return finish_options(options); });
  if (!refusal.ok() && !is_first) return kSaidByRank0;
  SWITCHYARD_RETURN_IF_ERROR(refusal);
  SWITCHYARD_RETURN_IF_ERROR(with_flags(measure(options, world, own)));
  const Result<int> num_machines = num_machines_of(world);
  if (!num_machines.ok()) return num_machines.status();
  own.num_machines = num_machines.value();
  Result<std::vector<std::string>> gathered = gather_texts(world, to_rank_json(own));
  if (!gathered.ok()) return gathered.status();
  rank_jsons = std::move(gathered).value();
  return own.verified() ? kVerified : kNotVerified;
}

// The process of rank 0 speaks for all. If they were on one machine, it leaves that to a process that has all
// ranks, and thus measures the local transport: this one has set CUDA up for one rank, with too few queues.
Result<ExitCode> bench_by_shmem(BenchOptions& options) {
  BenchReport own;
  std::vector<std::string> rank_jsons;
  bool is_first = false;
  const Result<ExitCode> code = measure_by_shmem(options, own, rank_jsons, is_first);
  if (!code.ok()) return code;
  if (!is_first) return kSaidByRank0;
  if (own.num_machines == 1) {
    std::vector<std::string> arguments =
        own_arguments_without({"--transport", "--ranks", "--p2p-world-size"});
    arguments.insert(arguments.end(), {"--ranks", std::to_string(options.n_ranks), "--p2p-world-size",
                                       std::to_string(own.p2p_world_size)});
    return run_beside(std::move(arguments), rank_jsons);
  }
  own.transport = options.transport;
  SWITCHYARD_RETURN_IF_ERROR(merge_bench_reports(rank_jsons, own));
  return print_report(options, own);
}

// What such a process does: the local transport, beside the reports of the processes that have ended.
Result<ExitCode> bench_beside_shmem(BenchOptions& options) {
  const Result<std::vector<std::string>> rank_jsons = read_lines({"--rank-reports", options.rank_reports});
  if (!rank_jsons.ok()) return rank_jsons.status();
  options.transport = "shmem";
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options));
  BenchReport report;
  SWITCHYARD_RETURN_IF_ERROR(with_flags(measure_here(options, report)));
  report.transport = options.transport;
  report.num_machines = 1;
  if (const Status merged = merge_bench_reports(rank_jsons.value(), report); !merged.ok())
    return invalid_argument("--rank-reports: %s: %s", options.rank_reports.c_str(), merged.message().c_str());
  return print_report(options, report);
}

Result<ExitCode> bench_and_report(BenchOptions& options) {
  if (!options.rank_reports.empty()) return bench_beside_shmem(options);
  if (options.is_by_shmem()) return bench_by_shmem(options);
  BenchReport report;
  options.is_joined = options.rank >= 0;
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options));
  SWITCHYARD_RETURN_IF_ERROR(with_flags(measure_here(options, report)));
  if (options.is_joined) {
    SWITCHYARD_RETURN_IF_ERROR(write_output({"stdout", "-"}, to_rank_json(report)));
    return report.verified() ? kVerified : kNotVerified;
  }
  if (options.compares_transports()) {
    const Result<ExitCode> code = measure_in_processes(options, report);
    if (!code.ok() || code.value() > kNotVerified) return code;
  }
  return print_report(options, report);
}

void add_ep(Command& bench) {
  Command command = bench.add_command(
      "ep",
      "Dispatch and combine: time of each phase by graph replay, bytes moved, part of the copy bandwidth");
  auto options = std::make_shared<BenchOptions>();
  add_target_option(command, options->target);
  const Option ranks = command.add_number("--ranks", options->n_ranks, 1, kMaxRanks, "Ranks in the world");
  command.add_name("--transport", options->transport, {"local", "process", "shmem"},
                   "All ranks in this process; or that beside a process started for each, or beside the\n"
                   "processes that a launcher of SHMEM has started");
  command
      .add_text("--rendezvous", options->rendezvous,
                "Where the processes meet that --transport process starts")
      .show_type("ADDRESS");
  command.add_number("--rank", options->rank, 0, kMaxRanks - 1, "The rank of such a process").hide_default();
  command
      .add_text("--rank-reports", options->rank_reports,
                "What processes of --transport shmem have measured, which starts this command with it")
      .show_type("FILE");
  command
      .add_number("--n-sms", options->launch.n_sms, 1, 65535, "Blocks of each launch, per rank [16; host 4]")
      .hide_default();
  command
      .add_number("--num-threads", options->launch.num_threads, 0, 1024,
                  "Threads of a block, a multiple of 32; 0 chooses")
      .hide_default();
  command.add_name("--protocol", options->protocol, {"automatic", "slotted", "direct", "both"},
                   "How rows travel: slotted, direct, both in turn, or automatic, which chooses by shape");
  command.add_number(
      "--lead-us", options->launch.lead_us, 0, 1000000,
      "A pause of so many us in front of what is timed, while the graph is still being submitted");
  command.add_flag("--dependent-launch", options->launch.dependent,
                   "CUDA: launches may take their places before their predecessors have ended");
  command
      .add_number("--hidden", options->hidden, kHiddenMultiple, kMaxHidden,
                  "Elements of a token, a multiple of 8 [7168; host 512]")
      .hide_default();
  command.add_number("--top-k", options->top_k, 1, kMaxTopK, "Experts of each token");
  command
      .add_number("--experts", options->n_experts, 1, kMaxExperts,
                  "Experts, a multiple of --ranks [256; host 32]")
      .hide_default();
  add_layout_options(command, options->launch.row_layout, options->launch.row_alignment);
  command.add_number("--max-rows-per-expert", options->launch.max_rows_per_expert, 0, kMaxRowsPerExpert,
                     "With --layout masked: the rows of each expert that there is memory for; a step with\n"
                     "more is skipped, and fails. 0: all that can come");
  add_delivery_option(command, options->launch.row_delivery);
  add_reduction_option(command, options->launch.reduce_at_owner);
  command.add_flag("--count-experts", options->launch.counts_experts,
                   "Count the rows of each expert on the device (counts_experts)");
  add_groups_option(command, options->launch.p2p_world_size);
  add_format_option(command, options->launch.format);
  add_combine_format_option(command, options->launch.combine_format);
  command.add_list("--tokens", options->tokens, 1, kMaxTokensPerRank,
                   "Tokens of every rank, a sweep [1,16,128,1024,4096; host 1,8,32]");
  command.add_name("--mode", options->mode, {"split", "fused", "both"},
                   "Two kernels for dispatch and two for combine, one each, or both ways");
  command
      .add_number("--replays", options->num_replays, 2, 1000000,
                  "Replays of each graph; their median counts [100; host 3]")
      .hide_default();
  command.add_name("--routing", options->routing, {"uniform", "zipf", "one-expert"},
                   "Experts of a token: all alike, low ones popular, or the first for every choice");
  command.add_seed("--seed", options->seed, "All numbers follow from it");
  command
      .add_number("--repeat-check", options->repeat_check, 1, 1'000'000'000,
                  "Instead of timing, replay each step so often and compare the hash of every output")
      .hide_default();
  add_json_option(command, options->json);
  command
      .add_text("--svg", options->svg,
                "Plot time and bandwidth against tokens per rank to FILE, or alone to stdout with -")
      .show_type("FILE");
  command.set_work([=] {
    options->ranks_given = ranks.is_given();
    return bench_and_report(*options);
  });
}

}  // namespace

void add_bench_command(CommandLine& line) {
  Command command = line.add_command("bench", "Measure this machine");
  add_ep(command);
  add_bench_formats_command(command);
  add_bench_attention_command(command);
  add_bench_matmul_command(command);
  add_bench_layer_command(command);
}

}  // namespace switchyard::tools
