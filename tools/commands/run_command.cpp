// `switchyard run`: steps of a MoE layer over all ranks, each verified against the plain reference.
#include <algorithm>
#include <cstdio>

#include "commands.hpp"
#include "files/output.hpp"
#include "merged_report.hpp"
#include "merged_trace.hpp"
#include "options.hpp"
#include "placement_options.hpp"
#include "rank_processes.hpp"
#include "report/progress.hpp"
#include "report/trace_file.hpp"
#include "run_report.hpp"
#include "tensor_options.hpp"
#include "workload/host_memory.hpp"
#include "workload/run_check.hpp"

namespace switchyard::tools {
namespace {

void add_phases(const LayerRun& layer, int step_idx, RunTrace& trace) {
  for (const TimedPhase& phase : layer.phases())
    if (trace.phases.size() < kMaxTraceEvents)
      trace.phases.push_back({step_idx, phase});
    else
      ++trace.num_dropped_phases;
}

Status finish_trace(const OutputName& output, LayerRun& layer, RunTrace& trace) {
  Result<std::vector<RankTrace>> ranks = layer.ep().take_trace();
  if (!ranks.ok()) return ranks.status();
  trace.ranks = std::move(ranks).value();
  return write_trace("run", output, trace);
}

using Layers = std::vector<std::unique_ptr<LayerRun>>;  // of each flight

Status run_each_step(const RunOptions& options, const reference::MlpExperts& experts, const Layers& layers,
                     Progress& progress, RunReport& report, RunTrace& trace) {
  const Workload& workload = options.workload;
  const auto label_of = [&](int step_idx) {
    return "step " + std::to_string(step_idx + 1) + " of " + std::to_string(options.steps) + ": ";
  };
  for (int first = 0; first < options.steps; first += options.steps_in_flight) {
    const int num_at_once = std::min(options.steps_in_flight, options.steps - first);
    std::vector<reference::Step> steps;
    std::vector<reference::Step*> at_once;
    std::vector<LayerRun*> flights;
    for (int i = 0; i < num_at_once; ++i) steps.push_back(make_step(workload, first + i));
    for (int i = 0; i < num_at_once; ++i) at_once.push_back(&steps[static_cast<size_t>(i)]);
    for (int i = 0; i < num_at_once; ++i) flights.push_back(layers[static_cast<size_t>(i)].get());
    progress.begin(label_of(first) + "running");
    const Status status = LayerRun::run_at_once(flights, first, at_once);
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
  const uint64_t join_timeout_ns = options.join_deadline_ms * 1'000'000;
  if (options.is_by_shmem())
    return World::join(
        {.transport = TransportChoice::kShmem, .target = target, .timeout_ns = join_timeout_ns});
  if (options.rank < 0) return World::create({.target = target, .n_ranks = options.workload.n_ranks});
  return World::join({.target = target,
                      .rank = options.rank,
                      .n_ranks = options.workload.n_ranks,
                      .timeout_ns = join_timeout_ns,
                      .rendezvous = options.rendezvous});
}

Status run_steps(const RunOptions& options, World& world, RunReport& report) {
  const Workload& workload = options.workload;
  Progress progress(1 + options.steps * 2);  // each is run and verified
  if (options.is_by_shmem() && !world.is_local(0)) progress.hide();
  progress.begin("preparing " + std::to_string(workload.n_experts) + " experts");
  LayerOptions asked = layer_options(options);
  if (asked.ep.timeout_ns == 0) asked.ep.timeout_ns = default_timeout_ns(world.target());
  Result<std::unique_ptr<LayerRun>> created = LayerRun::create(world, workload, asked);
  if (!created.ok()) return created.status();
  Layers layers;
  layers.push_back(std::move(created).value());
  LayerRun& layer = *layers.front();
  SWITCHYARD_RETURN_IF_ERROR(check_host_memory(layer.host_bytes(options.steps_in_flight)));
  for (int i = 1; i < options.steps_in_flight; ++i) {
    Result<std::unique_ptr<LayerRun>> flight = LayerRun::create_on_flight(layer, i);
    if (!flight.ok()) return flight.status();
    layers.push_back(std::move(flight).value());
  }
  reference::MlpExperts experts = make_experts(workload);
  if (options.multiplies_fp8()) round_to_fp8(experts);
  if (is_coded(options.weights)) round_to_codes(experts, options.weights);
  for (const auto& flight : layers) SWITCHYARD_RETURN_IF_ERROR(flight->allocate(experts));
  report.target = world.target();
  report.device = world.rank(world.local_ranks().front()).device_name();
  report.n_sms = layer.ep().n_sms();
  report.protocol = layer.ep().config().protocol;
  report.p2p_world_size = layer.ep().config().p2p_world_size;
  report.row_delivery = layer.ep().config().row_delivery;
  report.protocol_reason = layer.protocol_reason();
  report.memory_per_rank = layer.ep().bytes_per_rank();
  const bool is_traced = !options.trace.empty();
  if (is_traced) SWITCHYARD_RETURN_IF_ERROR(layer.ep().enable_trace(kMaxTraceEvents));
  RunTrace trace{.target = report.target, .device = report.device, .first_rank = world.local_ranks().front()};
  const Status status = run_each_step(options, experts, layers, progress, report, trace);
  // A run that failed is traced as well: that is when a trace is needed most.
  const Status traced = is_traced ? finish_trace({"--trace", options.trace}, layer, trace) : Status();
  return status.ok() ? traced : status;
}

Result<ExitCode> print_report(const RunOptions& options, const RunReport& report) {
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
  if (!refusal.ok() && !is_first) return kSaidByRank0;
  SWITCHYARD_RETURN_IF_ERROR(refusal);
  RunReport own, report;
  SWITCHYARD_RETURN_IF_ERROR(with_flags(run_steps(options, world, own)));
  SWITCHYARD_RETURN_IF_ERROR(gather_reports(world, to_json(options, own), report));
  return is_first ? print_report(options, report) : kSaidByRank0;
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
    if (options.rank >= 0)
      SWITCHYARD_RETURN_IF_ERROR(check_same_options(
          *world.value(), {"--rank", "--rendezvous", "--join-deadline-ms", "--json", "--trace", "--dump"}));
    SWITCHYARD_RETURN_IF_ERROR(with_flags(run_steps(options, *world.value(), report)));
  }
  return print_report(options, report);
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
  command.add_number("--join-deadline-ms", options->join_deadline_ms, 1, 3600000,
                     "How long the processes may take to join, and to agree on what they do next");
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
  command.add_choice(
      "--matmul", workload.matmuls, {{"reference", Matmuls::kReference}, {"fast", Matmuls::kFast}},
      "Plain matmuls, verified bit by bit, or the library's MoeLayer with tiled ones, verified\n"
      "within a bound: reference, fast");
  add_weights_option(command, options->weights);
  add_gate_up_start_option(command, options->gate_up_start);
  add_combine_start_option(command, options->combine_start);
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
