// `switchyard run`: steps of a MoE layer over all ranks, each verified against the plain reference.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "merged_report.hpp"
#include "merged_trace.hpp"
#include "options.hpp"
#include "placement_options.hpp"
#include "rank_processes.hpp"
#include "report/progress.hpp"
#include "report/trace_file.hpp"
#include "report/traffic_report.hpp"
#include "tensor_options.hpp"
#include "workload/host_memory.hpp"
#include "workload/run_check.hpp"

namespace switchyard::tools {
namespace {

struct RunOptions {
  std::string target = "auto";
  std::string transport = "local";
  std::string rendezvous;  // where the processes of the ranks meet
  int rank = -1;           // of this process; -1: it has all of them
  int tokens = 64;
  int n_sms = 0;
  Protocol protocol = Protocol::kAutomatic;
  double capacity_factor = 0;
  RowLayout row_layout = RowLayout::kRagged;
  int row_alignment = 1;
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  bool reduce_at_owner = false;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  bool skips_all_to_all = false;
  int p2p_world_size = 0;  // 0: one group
  int allreduce_world_size = 0;
  reference::TensorStyle style;
  int steps_in_flight = 1;
  PlacementOptions placement_options;
  std::optional<ExpertPlacement> placement;  // from these
  std::string mode = "split";
  std::string routing = "uniform";
  int steps = 2;
  uint64_t deadline_ms = 0;  // 0: as the target suggests
  std::string kill;          // RANK@PHASE
  std::string stall;         // RANK@PHASE:MS
  std::string dump;
  std::string json;
  std::string trace;
  Workload workload;
  FaultPlan faults;
  bool tokens_given = false;
  bool top_k_given = false;
  bool ranks_given = false;

  bool starts_processes() const { return transport == "process" && rank < 0; }
  bool is_by_shmem() const { return transport == "shmem"; }
  // A report that goes to stdout is alone there.
  bool prints_text() const { return json != "-" && trace != "-"; }
};

std::vector<std::string> phase_names(const RunOptions& options) {
  std::vector<std::string> names;
  if (has_router(options.workload)) names.push_back("route");
  const auto add = [&](std::initializer_list<const char*> more) {
    names.insert(names.end(), more.begin(), more.end());
  };
  const bool is_fused = options.mode == "fused";
  is_fused ? add({"dispatch"}) : add({"dispatch_async", "dispatch_wait"});
  const bool is_fast = options.workload.matmuls == Matmuls::kFast;
  if (options.format != TokenFormatKind::kBF16 && !(is_fast && options.format == TokenFormatKind::kFP8))
    add({"decode"});
  is_fast ? add({"gate_up", "down"}) : add({"gate_up", "silu_mul", "down"});
  // The protocol is not known yet; a phase that does not occur does no harm.
  if (options.combine_format != CombineFormat::kBF16 && options.protocol != Protocol::kSlotted)
    add({"encode"});
  is_fused ? add({"combine"}) : add({"combine_async", "combine_wait"});
  if (options.skips_all_to_all && options.allreduce_world_size != 1) add({"all_reduce"});
  return names;
}

// RANK@PHASE, or RANK@PHASE:MS where `milliseconds` is wanted.
Status parse_fault(const char* flag, const std::string& text, bool wants_milliseconds,
                   const RunOptions& options, FaultPlan::Event& event) {
  if (text.empty()) return Status();
  const char* form = wants_milliseconds ? "RANK@PHASE:MS" : "RANK@PHASE";
  const size_t at = text.find('@'), colon = text.find(':');
  if (at == std::string::npos || (colon != std::string::npos) != wants_milliseconds ||
      (wants_milliseconds && colon < at))
    return invalid_argument("%s: %s is not of the form %s", flag, text.c_str(), form);
  if (!is_whole_number(text.substr(0, at), event.rank) || event.rank < 0 ||
      event.rank >= options.workload.n_ranks)
    return invalid_argument("%s: the rank in %s must be 0..%d", flag, text.c_str(),
                            options.workload.n_ranks - 1);
  event.phase = text.substr(at + 1, wants_milliseconds ? colon - at - 1 : std::string::npos);
  if (wants_milliseconds &&
      (!is_whole_number(text.substr(colon + 1), event.milliseconds) || event.milliseconds > 3'600'000))
    return invalid_argument("%s: the milliseconds in %s must be 0..3600000", flag, text.c_str());
  const std::vector<std::string> names = phase_names(options);
  if (std::find(names.begin(), names.end(), event.phase) != names.end()) return Status();
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return invalid_argument("%s: the phase in %s must be one of %s", flag, text.c_str(), all.c_str());
}

Status check_transport(const RunOptions& options) {
  if ((options.rank >= 0) != !options.rendezvous.empty())
    return invalid_argument("--rank, --rendezvous: a process that joins others needs both");
  if (options.is_by_shmem() && !options.trace.empty())
    return invalid_argument(
        "--trace: each process has a trace of its own; start them by hand, with --rendezvous and --rank");
  if (options.rank >= options.workload.n_ranks)
    return invalid_argument("--rank: %d must be below --ranks (%d)", options.rank, options.workload.n_ranks);
  // The processes of the ranks look for a GPU themselves.
  return options.starts_processes() ? Status() : check_target_option(options.target);
}

// Checks the options beyond the range of each, and fills in what follows from them.
Status finish_options(RunOptions& options) {
  Workload& workload = options.workload;
  if (options.routing == "uniform") {
    workload.routing = RoutingKind::kUniform;
  } else if (options.routing == "zipf") {
    workload.routing = RoutingKind::kZipf;
  } else if (options.routing == "one-expert") {
    workload.routing = RoutingKind::kOneExpert;
  } else {
    workload.routing = RoutingKind::kFile;
    if (options.tokens_given)
      return invalid_argument(
          "--tokens, --tokens-per-rank: a --routing file says how many tokens each rank has");
    SWITCHYARD_RETURN_IF_ERROR(
        read_routing_file(options.routing, options.top_k_given ? workload.top_k : 0, workload));
  }
  if (workload.routing != RoutingKind::kFile && workload.tokens_per_rank.empty())
    workload.tokens_per_rank.assign(static_cast<size_t>(workload.n_ranks), options.tokens);
  if (static_cast<int>(workload.tokens_per_rank.size()) != workload.n_ranks)
    return invalid_argument("--tokens-per-rank: %zu values given, --ranks is %d",
                            workload.tokens_per_rank.size(), workload.n_ranks);
  if (workload.hidden % kHiddenMultiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d", workload.hidden, kHiddenMultiple);
  SWITCHYARD_RETURN_IF_ERROR(check_hidden_option(workload.hidden, options.format));
  SWITCHYARD_RETURN_IF_ERROR(check_hidden_option(workload.hidden, kind_of(options.combine_format)));
  workload.is_replicated = options.skips_all_to_all;
  SWITCHYARD_RETURN_IF_ERROR(
      check_groups_option(options.p2p_world_size, workload.n_ranks, options.skips_all_to_all));
  if (options.skips_all_to_all && workload.routing == RoutingKind::kFile)
    return invalid_argument("--skip-a2a: every rank has the same tokens; a --routing file says otherwise");
  if (options.skips_all_to_all && std::count(workload.tokens_per_rank.begin(), workload.tokens_per_rank.end(),
                                             workload.tokens_per_rank.front()) != workload.n_ranks)
    return invalid_argument("--skip-a2a: every rank has the same tokens; --tokens-per-rank says otherwise");
  if (options.allreduce_world_size != 0 && !options.skips_all_to_all)
    return invalid_argument("--allreduce-world-size: it needs --skip-a2a; otherwise outputs are whole");
  if (options.allreduce_world_size != 0 && workload.n_ranks % options.allreduce_world_size != 0)
    return invalid_argument("--allreduce-world-size: %d must divide --ranks (%d)",
                            options.allreduce_world_size, workload.n_ranks);
  if (options.skips_all_to_all && options.capacity_factor != 0)
    return invalid_argument("--capacity-factor: with --skip-a2a there is always room; it must be 0");
  if (options.row_layout == RowLayout::kPerRank)
    return invalid_argument(
        "--layout: per-rank leaves the sum over a rank's experts to the application, which run does not do; "
        "`switchyard bench ep --layout per-rank` and `switchyard simulate` verify it");
  if (options.row_layout == RowLayout::kMasked && options.capacity_factor != 0)
    return invalid_argument("--capacity-factor: with --layout masked every expert has room; it must be 0");
  SWITCHYARD_RETURN_IF_ERROR(check_tensor_options(options.style, options.format, options.skips_all_to_all));
  if (workload.expert_width % 8 != 0)
    return invalid_argument("--expert-width: %d must be a multiple of 8", workload.expert_width);
  if (workload.matmuls == Matmuls::kFast && options.format == TokenFormatKind::kFP8) {
    if (workload.expert_width % (kMatmulScaleGroup / 2) != 0)
      return invalid_argument("--expert-width: %d must be a multiple of %d with --matmul fast in fp8",
                              workload.expert_width, kMatmulScaleGroup / 2);
    if (!options.dump.empty())
      return invalid_argument("--dump: with --matmul fast in fp8 rows are not decoded; it must be empty");
  }
  if (options.steps_in_flight > 1 && !options.trace.empty())
    return invalid_argument("--trace: only single steps can be traced; --in-flight must be 1");
  if (has_router(workload) && workload.top_k > workload.n_experts)
    return invalid_argument("--top-k: %d must be at most --experts (%d)", workload.top_k, workload.n_experts);
  Result<std::optional<ExpertPlacement>> placement = placement_of(options.placement_options, workload);
  if (!placement.ok()) return placement.status();
  options.placement = std::move(placement).value();
  SWITCHYARD_RETURN_IF_ERROR(parse_fault("--kill", options.kill, false, options, options.faults.kill));
  SWITCHYARD_RETURN_IF_ERROR(parse_fault("--stall", options.stall, true, options, options.faults.stall));
  if (!kChecked && !(options.kill.empty() && options.stall.empty()))
    return invalid_argument("--kill, --stall: this build is unchecked: its kernels would wait forever");
  // Output paths are checked before anything runs.
  SWITCHYARD_RETURN_IF_ERROR(check_output_names({{"--json", options.json}, {"--trace", options.trace}}));
  if (options.dump == "-")
    return invalid_argument("--dump: a dump is a folder with many files; it cannot go to stdout");
  if (!options.dump.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.dump, error);
    if (error)
      return invalid_argument("--dump: cannot make %s: %s", options.dump.c_str(), error.message().c_str());
  }
  return check_transport(options);
}

// Masked: room for every token of every rank, and, where a routing file repeats ids, for every id of it. 0
// leaves the choice to the library.
int masked_capacity(const RunOptions& options) {
  const Workload& workload = options.workload;
  if (options.row_layout != RowLayout::kMasked || options.skips_all_to_all || has_router(workload)) return 0;
  return workload.n_ranks * workload.max_tokens_per_rank() * workload.top_k;
}

// The events kept of each block, and of the host's phases: the first ones.
constexpr uint32_t kMaxTraceEvents = 8192;

void add_phases(const MoeLayer& layer, int step_idx, RunTrace& trace) {
  for (const TimedPhase& phase : layer.phases())
    if (trace.phases.size() < kMaxTraceEvents)
      trace.phases.push_back({step_idx, phase});
    else
      ++trace.num_dropped_phases;
}

Status finish_trace(const OutputName& output, MoeLayer& layer, RunTrace& trace) {
  Result<std::vector<RankTrace>> ranks = layer.ep().take_trace();
  if (!ranks.ok()) return ranks.status();
  trace.ranks = std::move(ranks).value();
  if (trace.num_dropped() > 0)
    std::fprintf(stderr, "switchyard run: --trace: %llu events did not fit; each row has its first %u\n",
                 static_cast<unsigned long long>(trace.num_dropped()), kMaxTraceEvents);
  return write_output(output, to_json(trace));
}

using Layers = std::vector<std::unique_ptr<MoeLayer>>;  // of each flight

Status run_each_step(const RunOptions& options, const reference::MlpExperts& experts, const Layers& layers,
                     Progress& progress, RunReport& report, RunTrace& trace) {
  const Workload& workload = options.workload;
  const StepMode mode = options.mode == "fused" ? StepMode::kFused : StepMode::kSplit;
  const auto label_of = [&](int step_idx) {
    return "step " + std::to_string(step_idx + 1) + " of " + std::to_string(options.steps) + ": ";
  };
  for (int first = 0; first < options.steps; first += options.steps_in_flight) {
    const int num_at_once = std::min(options.steps_in_flight, options.steps - first);
    std::vector<reference::Step> steps;
    std::vector<reference::Step*> at_once;
    std::vector<MoeLayer*> flights;
    for (int i = 0; i < num_at_once; ++i) steps.push_back(make_step(workload, first + i));
    for (int i = 0; i < num_at_once; ++i) at_once.push_back(&steps[static_cast<size_t>(i)]);
    for (int i = 0; i < num_at_once; ++i) flights.push_back(layers[static_cast<size_t>(i)].get());
    progress.begin(label_of(first) + "running");
    const Status status = MoeLayer::run_at_once(flights, first, mode, at_once);
    if (!options.trace.empty()) add_phases(*flights.front(), first, trace);
    SWITCHYARD_RETURN_IF_ERROR(status);
    for (int i = 0; i < num_at_once; ++i) {
      progress.begin(label_of(first + i) + "verifying");
      SWITCHYARD_RETURN_IF_ERROR(check_step(*flights[static_cast<size_t>(i)], steps[static_cast<size_t>(i)],
                                            experts, label_of(first + i), report));
    }
    if (!options.dump.empty() && first + num_at_once == options.steps)
      SWITCHYARD_RETURN_IF_ERROR(dump_step(options.dump, *flights.back(), steps.back(), experts));
  }
  report.phases = layers.front()->phases();
  return Status();
}

Result<std::unique_ptr<World>> make_world(const RunOptions& options) {
  const TargetChoice target = target_choice(options.target);
  if (options.is_by_shmem()) return World::join({.transport = TransportChoice::kShmem, .target = target});
  if (options.rank < 0) return World::create({.target = target, .n_ranks = options.workload.n_ranks});
  return World::join({.target = target,
                      .rank = options.rank,
                      .n_ranks = options.workload.n_ranks,
                      .rendezvous = options.rendezvous});
}

Status run_steps(const RunOptions& options, World& world, RunReport& report) {
  const Workload& workload = options.workload;
  Progress progress(1 + options.steps * 2);  // each is run and verified
  if (options.is_by_shmem() && !world.is_local(0)) progress.hide();
  progress.begin("preparing " + std::to_string(workload.n_experts) + " experts");
  Result<std::unique_ptr<MoeLayer>> created = MoeLayer::create(
      world, workload,
      {.n_sms = options.n_sms,
       .timeout_ns =
           options.deadline_ms == 0 ? default_timeout_ns(world.target()) : options.deadline_ms * 1'000'000,
       .protocol = options.protocol,
       .capacity_factor = options.capacity_factor,
       .row_layout = options.row_layout,
       .row_alignment = options.row_alignment,
       .max_rows_per_expert = masked_capacity(options),
       .row_delivery = options.row_delivery,
       .reduce_at_owner = options.reduce_at_owner,
       .dispatch_format = options.format,
       // Kernels that do not take the scale from the device are found out.
       .input_scale = options.style.has_device_scale ? 4 * kInputScale : kInputScale,
       .expert_input_scales = expert_input_scales(options.format, workload.n_experts),
       .combine_format = options.combine_format,
       .shared_expert = workload.has_shared_expert ? SharedExpert::kFused : SharedExpert::kNone,
       .routing = options.skips_all_to_all ? Routing::kSkipAllToAll : Routing::kAllToAll,
       .p2p_world_size = options.p2p_world_size,
       .allreduce_world_size = options.skips_all_to_all ? options.allreduce_world_size : 1,
       .placement = options.placement,
       .steps_in_flight = options.steps_in_flight},
      options.faults, options.style);
  if (!created.ok()) return created.status();
  Layers layers;
  layers.push_back(std::move(created).value());
  MoeLayer& layer = *layers.front();
  SWITCHYARD_RETURN_IF_ERROR(check_host_memory(layer.host_bytes() * options.steps_in_flight));
  for (int i = 1; i < options.steps_in_flight; ++i) {
    Result<std::unique_ptr<MoeLayer>> flight = MoeLayer::create_on_flight(layer, i);
    if (!flight.ok()) return flight.status();
    layers.push_back(std::move(flight).value());
  }
  reference::MlpExperts experts = make_experts(workload);
  if (workload.matmuls == Matmuls::kFast && options.format == TokenFormatKind::kFP8) round_to_fp8(experts);
  for (const auto& flight : layers) SWITCHYARD_RETURN_IF_ERROR(flight->allocate(experts));
  report.target = world.target();
  report.device = world.rank(world.local_ranks().front()).device_name();
  report.n_sms = layer.ep().n_sms();
  report.protocol = layer.ep().config().protocol;
  report.p2p_world_size = layer.ep().config().p2p_world_size;
  report.row_delivery = layer.ep().config().row_delivery;
  report.protocol_reason = layer.ep().protocol_reason();
  report.memory_per_rank = layer.ep().bytes_per_rank();
  const bool is_traced = !options.trace.empty();
  if (is_traced) SWITCHYARD_RETURN_IF_ERROR(layer.ep().enable_trace(kMaxTraceEvents));
  RunTrace trace{.target = report.target, .device = report.device, .first_rank = world.local_ranks().front()};
  const Status status = run_each_step(options, experts, layers, progress, report, trace);
  // A run that failed is traced as well: that is when a trace is needed most.
  const Status traced = is_traced ? finish_trace({"--trace", options.trace}, layer, trace) : Status();
  return status.ok() ? traced : status;
}

void print_table(const RunOptions& options, const RunReport& report) {
  const Workload& workload = options.workload;
  std::printf("Switchyard: a mixture-of-experts layer over %d rank%s\n\n", workload.n_ranks,
              workload.n_ranks == 1 ? "" : "s");
  std::printf("  target    %s: %s, %d blocks per rank\n", to_string(report.target), report.device.c_str(),
              report.n_sms);
  if (options.is_by_shmem())
    std::printf("  transport shmem: a process for every rank, started by the launcher\n");
  if (options.transport == "process" || options.rank >= 0)
    std::printf("  transport process: %s\n", options.rank < 0 ? "a process for every rank, started here"
                                                              : "this is the process of one rank");
  std::printf("  protocol  %s: %s\n", to_string(report.protocol), report.protocol_reason.c_str());
  if (report.p2p_world_size != 0)
    std::printf("  groups    of %d rank%s; rows go over a wire between groups\n", report.p2p_world_size,
                report.p2p_world_size == 1 ? "" : "s");
  if (options.row_layout != RowLayout::kRagged || options.row_alignment != 1)
    std::printf("  rows      %s, aligned to %d\n", to_string(options.row_layout), options.row_alignment);
  if (report.row_delivery == RowDelivery::kReceiver)
    std::printf("  delivery  by the receiver: a token crosses once to each rank\n");
  if (const std::string special = options.style.describe(); !special.empty())
    std::printf("  inputs    %s\n", special.c_str());
  if (options.steps_in_flight > 1) std::printf("  flights   %d steps at once\n", options.steps_in_flight);
  if (options.placement)
    std::printf("  placement at most %d experts per rank, %d replicas\n",
                options.placement->num_seats_per_rank(), num_replicas(*options.placement));
  std::printf("  memory    %.2f MB per rank for the exchange and its rows\n",
              static_cast<double>(report.memory_per_rank) * 1e-6);
  std::printf("  layer     hidden %d, %d experts%s of width %d, top-%d, %s, %s kernels, %s routing%s\n\n",
              workload.hidden, workload.n_experts, workload.has_shared_expert ? " and a shared one" : "",
              workload.expert_width, workload.top_k, to_string(options.format), options.mode.c_str(),
              options.routing.c_str(), options.skips_all_to_all ? ", no all-to-all" : "");
  std::printf("  rank   tokens   expert rows\n");
  const uint64_t most = *std::max_element(report.rows_per_rank.begin(), report.rows_per_rank.end());
  for (const int rank : report.ranks) {
    const uint64_t rows = report.rows_per_rank[rank];
    const size_t bar = most == 0 ? 0 : static_cast<size_t>((rows * 30 + most - 1) / most);
    std::printf("  %4d  %7d  %12llu  %s\n", rank, workload.tokens_per_rank[rank],
                static_cast<unsigned long long>(rows), std::string(bar, '#').c_str());
  }
  std::printf("\n  phase                    time\n");
  for (const TimedPhase& phase : report.phases)
    std::printf("  %-16s %9.1f us\n", phase.name.c_str(), phase.microseconds());
  std::printf("\n  bytes moved      %.2f MB per step (%s)\n", static_cast<double>(report.bytes_moved) * 1e-6,
              options.skips_all_to_all ? "partial sums that ranks read of each other"
                                       : "dispatch messages and combined rows");
  if (report.traffic) print_traffic(*report.traffic);
  std::printf("  largest error    %.3g over %d step%s\n", report.max_abs_error, options.steps,
              options.steps == 1 ? "" : "s");
  if (options.combine_format != CombineFormat::kBF16)
    std::printf("  combine in fp8   costs %.3g at most, %.3g %% rms, against bf16\n", report.combine_error,
                100 * report.relative_combine_error());
  if (options.reduce_at_owner)
    std::printf("  sums by owners   cost %.3g at most, %.3g %% rms, against one sum of all rows\n",
                report.combine_error, 100 * report.relative_combine_error());
  if (report.verified)
    std::printf("  verified         row_offsets, row_counts, expert_ids, src_info, rows%s and output\n",
                options.format == TokenFormatKind::kBF16 ? "" : ", scales");
  else
    std::printf("  NOT VERIFIED     %s\n", report.first_difference.c_str());
}

std::string to_json(const RunOptions& options, const RunReport& report) {
  const Workload& workload = options.workload;
  JsonObject phases, shape;
  for (const TimedPhase& phase : report.phases) phases.add(phase.name, phase.microseconds());
  shape.add("ranks", workload.n_ranks)
      .add("tokens_per_rank", workload.tokens_per_rank)
      .add("hidden", workload.hidden)
      .add("top_k", workload.top_k)
      .add("experts", workload.n_experts)
      .add("expert_width", workload.expert_width);
  JsonObject json;
  json.add("verified", report.verified)
      .add("max_abs_error", report.max_abs_error)
      .add("rows_per_rank", report.rows_per_rank)
      .add("bytes_moved", report.bytes_moved)
      .add("memory_per_rank", report.memory_per_rank);
  if (report.traffic) json.add("traffic", traffic_json(*report.traffic));
  json.add("phases", std::move(phases))
      .add("target", to_string(report.target))
      .add("device", report.device)
      .add("shape", std::move(shape))
      .add("format", to_string(options.format))
      .add("combine_format", to_string(options.combine_format))
      .add("shared_expert", workload.has_shared_expert)
      .add("matmul", workload.matmuls == Matmuls::kFast ? "fast" : "reference")
      .add("skip_a2a", options.skips_all_to_all)
      .add("allreduce_world_size", options.allreduce_world_size)
      .add("p2p_world_size", report.p2p_world_size)
      .add("layout", to_string(options.row_layout))
      .add("alignment", options.row_alignment)
      .add("delivery", to_string(report.row_delivery))
      .add("reduce_at_owner", options.reduce_at_owner)
      .add("inputs", options.style.describe())
      .add("in_flight", options.steps_in_flight)
      .add("mode", options.mode)
      .add("routing", options.routing)
      .add("padding", workload.padding)
      .add("n_sms", report.n_sms)
      .add("protocol", to_string(report.protocol))
      .add("protocol_reason", report.protocol_reason)
      .add("steps", options.steps)
      .add("seed", workload.seed);
  if (options.placement)
    json.add("experts_per_rank", options.placement->num_seats_per_rank())
        .add("replicas", num_replicas(*options.placement));
  if (options.combine_format != CombineFormat::kBF16 || options.reduce_at_owner)
    json.add("combine_error", report.combine_error)
        .add("combine_error_rms", report.relative_combine_error())
        .add("squared_combine_error", report.squared_combine_error)
        .add("squared_output", report.squared_output);
  if (!report.verified) json.add("first_difference", report.first_difference);
  return json.to_text();
}

Result<ExitCode> show(const RunOptions& options, const RunReport& report) {
  if (options.prints_text()) print_table(options, report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, to_json(options, report)));
  return report.verified ? kVerified : kNotVerified;
}

// Each rank has a process, which is this command with its rank.
Result<ExitCode> run_in_processes(const RunOptions& options, RunReport& report) {
  std::vector<std::string> arguments = own_arguments_without({"--transport", "--json", "--trace"});
  arguments.insert(arguments.end(), {"--json", "-"});
  if (!options.trace.empty()) arguments.insert(arguments.end(), {"--trace", kExtraOutput});
  const Result<std::vector<RankOutcome>> outcomes = run_rank_processes(options.workload.n_ranks, arguments);
  if (!outcomes.ok()) return outcomes.status();
  Result<ExitCode> code = merge_outcomes(outcomes.value(), report);
  if (options.trace.empty()) return code;
  std::vector<std::string> traces;
  for (const RankOutcome& outcome : outcomes.value())
    traces.push_back(outcome.signal == 0 ? outcome.extra : "");  // what was killed has written half of one
  const Result<std::string> trace = merge_traces(traces);
  const Status traced = trace.ok() ? write_output({"--trace", options.trace}, trace.value()) : trace.status();
  // A run that failed says why; that it has no trace, or not of all ranks, follows from it.
  return code.ok() && code.value() <= kNotVerified && !traced.ok() ? traced : code;
}

// The process of rank 0 speaks for all that the launcher has started.
Result<ExitCode> run_by_shmem(RunOptions& options) {
  const Result<std::unique_ptr<World>> joined = make_world(options);
  if (!joined.ok()) return with_flags(joined.status());
  World& world = *joined.value();
  const bool is_first = world.is_local(0);
  const Status refusal = finish_launched_options(world, options.ranks_given, options.workload.n_ranks,
                                                 [&] { return finish_options(options); });
  if (!refusal.ok() && !is_first) return kBadArgument;  // it is said once
  SWITCHYARD_RETURN_IF_ERROR(refusal);
  RunReport own, report;
  SWITCHYARD_RETURN_IF_ERROR(with_flags(run_steps(options, world, own)));
  SWITCHYARD_RETURN_IF_ERROR(gather_reports(world, to_json(options, own), report));
  if (is_first) return show(options, report);
  return report.verified ? kVerified : kNotVerified;
}

Result<ExitCode> run_and_report(RunOptions& options) {
  if (options.is_by_shmem()) return run_by_shmem(options);
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options));
  RunReport report;
  if (options.starts_processes()) {
    const Result<ExitCode> code = run_in_processes(options, report);
    if (!code.ok() || (code.value() != kVerified && code.value() != kNotVerified)) return code;
  } else {
    const Result<std::unique_ptr<World>> world = make_world(options);
    if (!world.ok()) return with_flags(world.status());
    SWITCHYARD_RETURN_IF_ERROR(with_flags(run_steps(options, *world.value(), report)));
  }
  return show(options, report);
}

}  // namespace

void add_run_command(CommandLine& line) {
  Command command = line.add_command("run", "Run a mixture-of-experts layer over all ranks and verify it");
  auto options = std::make_shared<RunOptions>();
  Workload& workload = options->workload;
  add_target_option(command, options->target);
  const Option ranks = command.add_number("--ranks", workload.n_ranks, 1, kMaxRanks, "Ranks in the world");
  command.add_name("--transport", options->transport, {"local", "process", "shmem"},
                   "All ranks in this process, a process started for each, or the processes that\n"
                   "a launcher of SHMEM has started (oshrun -np 4 switchyard run --transport shmem)");
  command
      .add_text("--rendezvous", options->rendezvous,
                "Join the processes of the other ranks at unix:/path, unix:@name or tcp:HOST:PORT, which\n"
                "rank 0 listens at; tcp needs a token of 32 hex digits in SWITCHYARD_TOKEN")
      .show_type("ADDRESS");
  command.add_number("--rank", options->rank, 0, kMaxRanks - 1, "The rank of this process, with --rendezvous")
      .hide_default();
  const Option tokens =
      command.add_number("--tokens", options->tokens, 0, kMaxTokensPerRank, "Tokens of every rank");
  const Option tokens_per_rank = command
                                     .add_list("--tokens-per-rank", workload.tokens_per_rank, 0,
                                               kMaxTokensPerRank, "Tokens of each rank, as 5,0,7,..")
                                     .excludes(tokens);
  command.add_number("--hidden", workload.hidden, kHiddenMultiple, kMaxHidden,
                     "Elements of a token, a multiple of 8");
  const Option top_k = command.add_number("--top-k", workload.top_k, 1, kMaxTopK, "Experts of each token");
  command.add_number("--experts", workload.n_experts, 1, kMaxExperts,
                     "Experts of the model, divided among the ranks as evenly as can be");
  command.add_number("--expert-width", workload.expert_width, 8, 65536,
                     "Inner width of an expert's MLP, a multiple of 8");
  add_format_option(command, options->format);
  add_combine_format_option(command, options->combine_format);
  command.add_flag("--shared-expert", workload.has_shared_expert,
                   "One expert more, which every token goes to on its own rank, fused in");
  command.add_flag("--skip-a2a", options->skips_all_to_all,
                   "Every rank has all tokens and its own experts; an all-reduce completes the step");
  command.add_choice("--matmul", workload.matmuls,
                     {{"reference", Matmuls::kReference}, {"fast", Matmuls::kFast}},
                     "Plain matmuls, verified bit by bit, or the tiled ones, verified within a bound: "
                     "reference, fast");
  command.add_number(
      "--allreduce-world-size", options->allreduce_world_size, 0, kMaxRanks,
      "With --skip-a2a: ranks that share the shared expert's tokens and add up their outputs; it\n"
      "divides --ranks; 0 is all of them, and 1 leaves the partial sums");
  add_tensor_options(command, options->style);
  add_groups_option(command, options->p2p_world_size);
  add_placement_options(command, options->placement_options);
  command.add_name("--mode", options->mode, {"split", "fused"},
                   "Two kernels for dispatch and two for combine, or one each");
  command.add_number("--n-sms", options->n_sms, 0, 65535, "Blocks of each launch, per rank; 0 chooses");
  add_protocol_option(command, options->protocol, "chooses by shape and says why");
  command.add_fraction("--capacity-factor", options->capacity_factor, 0.0, kMaxRanks,
                       "Room for rows, as a multiple of a rank's even share; 0: for the worst case");
  add_layout_options(command, options->row_layout, options->row_alignment);
  add_delivery_option(command, options->row_delivery);
  add_reduction_option(command, options->reduce_at_owner);
  command.add_text("--routing", options->routing,
                   "uniform, zipf (low experts are popular), one-expert (every id is 0),\n"
                   "or a CSV file with one token's ids per line: rank,id,id,.. (-1 is padding)");
  command.add_fraction("--padding", workload.padding, 0.0, 1.0, "Share of the ids that become -1");
  command.add_number("--steps", options->steps, 1, 1000000, "Steps to run, each with new tokens");
  command.add_number("--in-flight", options->steps_in_flight, 1, 8,
                     "Steps under way at once, each with buffers of its own");
  command.add_seed("--seed", workload.seed, "All numbers follow from it");
  command
      .add_number("--deadline-ms", options->deadline_ms, 1, 3600000,
                  "How long a wait for a peer may take before it is a fault [5000; host 60000]")
      .hide_default();
  command.add_text("--kill", options->kill,
                   "RANK@PHASE: the rank does not come to that phase, nor to a later one");
  command.add_text("--stall", options->stall, "RANK@PHASE:MS: the rank comes to that phase late");
  command
      .add_text("--dump", options->dump,
                "Write the last step's inputs and results as DIR/rank_R/*.npy (bf16 as uint16)")
      .show_type("DIR");
  add_json_option(command, options->json);
  command
      .add_text("--trace", options->trace,
                "Write what every block did and waited for to FILE, for Perfetto or chrome://tracing,\nor "
                "alone to stdout with -")
      .show_type("FILE");
  command.set_work([=] {
    options->tokens_given = tokens.is_given() || tokens_per_rank.is_given();
    options->top_k_given = top_k.is_given();
    options->ranks_given = ranks.is_given();
    return run_and_report(*options);
  });
}

}  // namespace switchyard::tools
