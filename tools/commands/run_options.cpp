#include "run_options.hpp"

#include <algorithm>
#include <filesystem>

#include "files/output.hpp"
#include "options.hpp"
#include "tensor_options.hpp"

namespace switchyard::tools {
namespace {

std::vector<std::string> phase_names(const RunOptions& options) {
  std::vector<std::string> names;
  if (options.workload.matmuls == Matmuls::kFast) {
    for (const MoePart part : parts_of(layer_config(layer_options(options))))
      if (part != MoePart::kRoute || has_router(options.workload)) names.push_back(to_string(part));
    return names;
  }
  if (has_router(options.workload)) names.push_back("route");
  const auto add = [&](std::initializer_list<const char*> more) {
    names.insert(names.end(), more.begin(), more.end());
  };
  const bool is_fused = options.mode == "fused";
  is_fused ? add({"dispatch"}) : add({"dispatch_async", "dispatch_wait"});
  const bool is_per_rank = options.row_layout == RowLayout::kPerRank;
  if (options.format != TokenFormatKind::kBF16) add({"decode"});
  if (is_per_rank) add({"expand"});
  add({"gate_up", "silu_mul", "down"});
  if (is_per_rank) add({"sum"});
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

// The process of each rank reads its files, too, and a pipe is empty then.
Status check_can_be_read_again(const char* flag, const std::string& path, const RunOptions& options) {
  std::error_code error;
  if (!options.starts_processes() || !std::filesystem::exists(path, error) ||
      std::filesystem::is_regular_file(path, error) || std::filesystem::is_directory(path, error))
    return Status();
  return invalid_argument("%s: %s must be a regular file with --transport process, whose ranks read it, too",
                          flag, path.c_str());
}

// The routing, and the tokens of each rank.
Status finish_routing(RunOptions& options) {
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
    SWITCHYARD_RETURN_IF_ERROR(check_can_be_read_again("--routing", options.routing, options));
    SWITCHYARD_RETURN_IF_ERROR(
        read_routing_file(options.routing, options.top_k_given ? workload.top_k : 0, workload));
  }
  if (workload.routing != RoutingKind::kFile && workload.tokens_per_rank.empty())
    workload.tokens_per_rank.assign(static_cast<size_t>(workload.n_ranks), options.tokens);
  if (static_cast<int>(workload.tokens_per_rank.size()) != workload.n_ranks)
    return invalid_argument("--tokens-per-rank: %zu values given, --ranks is %d",
                            workload.tokens_per_rank.size(), workload.n_ranks);
  return Status();
}

// Where every rank has all tokens.
Status check_skipped_all_to_all(const RunOptions& options) {
  const Workload& workload = options.workload;
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
  return Status();
}

// What the library's MoeLayer does not take.
Status check_fast_matmuls(const RunOptions& options) {
  const char* instead = "--matmul reference takes it";
  if (options.multiplies_fp8() && options.workload.expert_width % (kMatmulScaleGroup / 2) != 0)
    return invalid_argument("--expert-width: %d must be a multiple of %d with --matmul fast in fp8",
                            options.workload.expert_width, kMatmulScaleGroup / 2);
  if (options.row_layout == RowLayout::kPerRank)
    return invalid_argument(
        "--layout: per-rank with --matmul fast, whose matmuls take the rows of one expert after the other, "
        "as --layout ragged and masked have them; %s",
        instead);
  MoeLayerConfig config = layer_config(layer_options(options));
  config.ep.hidden = options.workload.hidden;
  config.expert_width = options.workload.expert_width;
  SWITCHYARD_RETURN_IF_ERROR(check_weights_option(config));
  SWITCHYARD_RETURN_IF_ERROR(
      check_combine_start(options.combine_start, options.protocol, options.combine_format));
  if (options.combine_start == CombineStart::kWithExperts && options.mode != "fused")
    return invalid_argument("--combine-start: with-experts needs --mode fused, not %s", options.mode.c_str());
  if (options.combine_start == CombineStart::kWithExperts && options.p2p_world_size != 0 &&
      options.p2p_world_size != options.workload.n_ranks)
    return invalid_argument(
        "--p2p-world-size: %d must be 0 or --ranks (%d) with --combine-start with-experts",
        options.p2p_world_size, options.workload.n_ranks);
  if (options.combine_start == CombineStart::kWithExperts && options.reduce_at_owner)
    return invalid_argument("--combine-start: with-experts does without --reduce-at-owner");
  if (options.gate_up_start == GateUpStart::kBehindDispatch) return Status();
  SWITCHYARD_RETURN_IF_ERROR(check_gate_up_start(options.gate_up_start, options.format));
  if (options.protocol == Protocol::kSlotted)
    return invalid_argument("--gate-up-start: with-rows needs --protocol direct, not slotted");
  if (options.row_delivery == RowDelivery::kReceiver)
    return invalid_argument("--gate-up-start: with-rows needs --delivery sender, not receiver");
  if (options.row_layout == RowLayout::kMasked)
    return invalid_argument("--gate-up-start: with-rows needs --layout ragged, not masked");
  return Status();
}

Status check_experts(const RunOptions& options) {
  const Workload& workload = options.workload;
  if (workload.expert_width % 8 != 0)
    return invalid_argument("--expert-width: %d must be a multiple of 8", workload.expert_width);
  if (workload.matmuls == Matmuls::kFast) return check_fast_matmuls(options);
  if (is_coded(options.weights))
    return invalid_argument("--weights: %s needs --matmul fast", to_string(options.weights));
  if (options.gate_up_start != GateUpStart::kBehindDispatch)
    return invalid_argument("--gate-up-start: with-rows needs --matmul fast");
  if (options.combine_start != CombineStart::kBehindExperts)
    return invalid_argument("--combine-start: with-experts needs --matmul fast");
  return Status();
}

// Output paths are checked before anything runs.
Status check_outputs(const RunOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(check_output_names({{"--json", options.json}, {"--trace", options.trace}}));
  if (options.dump == "-")
    return invalid_argument("--dump: a dump is a folder with many files; it cannot go to stdout");
  if (!options.dump.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.dump, error);
    if (error)
      return invalid_argument("--dump: cannot make %s: %s", options.dump.c_str(), error.message().c_str());
  }
  return Status();
}

// Masked: room for every token of every rank, and, where a routing file repeats ids, for every id of it. 0
// leaves the choice to the library.
int masked_capacity(const RunOptions& options) {
  const Workload& workload = options.workload;
  if (options.row_layout != RowLayout::kMasked || options.skips_all_to_all || has_router(workload)) return 0;
  return workload.n_ranks * workload.max_tokens_per_rank() * workload.top_k;
}

}  // namespace

LayerOptions layer_options(const RunOptions& options) {
  const Workload& workload = options.workload;
  return {.ep = {.n_sms = options.n_sms,
                 .timeout_ns = options.deadline_ms * 1'000'000,
                 .protocol = options.protocol,
                 .capacity_factor = options.capacity_factor,
                 .row_layout = options.row_layout,
                 .row_alignment = options.row_alignment,
                 .max_rows_per_expert = masked_capacity(options),
                 .row_delivery = options.row_delivery,
                 .reduce_at_owner = options.reduce_at_owner,
                 .combine_start = options.combine_start,
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
          .mode = options.mode == "fused" ? StepMode::kFused : StepMode::kSplit,
          .gate_up_start = options.gate_up_start,
          .weights = options.weights,
          .faults = options.faults,
          .style = options.style};
}

Status finish_options(RunOptions& options) {
  Workload& workload = options.workload;
  SWITCHYARD_RETURN_IF_ERROR(finish_routing(options));
  if (workload.hidden % kHiddenMultiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d", workload.hidden, kHiddenMultiple);
  SWITCHYARD_RETURN_IF_ERROR(check_hidden_option(workload.hidden, options.format, options.combine_format));
  workload.is_replicated = options.skips_all_to_all;
  SWITCHYARD_RETURN_IF_ERROR(
      check_groups_option(options.p2p_world_size, workload.n_ranks, options.skips_all_to_all));
  SWITCHYARD_RETURN_IF_ERROR(check_skipped_all_to_all(options));
  if (options.row_layout == RowLayout::kPerRank && !options.dump.empty())
    return invalid_argument("--dump: it has the rows of experts, which --layout per-rank leaves apart");
  if (options.row_layout == RowLayout::kMasked && options.capacity_factor != 0)
    return invalid_argument("--capacity-factor: with --layout masked every expert has room; it must be 0");
  SWITCHYARD_RETURN_IF_ERROR(check_tensor_options(options.style, options.format, options.skips_all_to_all));
  SWITCHYARD_RETURN_IF_ERROR(check_experts(options));
  if (options.steps_in_flight > 1 && !options.trace.empty())
    return invalid_argument("--trace: only single steps can be traced; --in-flight must be 1");
  if (has_router(workload) && workload.top_k > workload.n_experts)
    return invalid_argument("--top-k: %d must be at most --experts (%d)", workload.top_k, workload.n_experts);
  SWITCHYARD_RETURN_IF_ERROR(check_can_be_read_again("--placement", options.placement_options.file, options));
  Result<std::optional<ExpertPlacement>> placement = placement_of(options.placement_options, workload);
  if (!placement.ok()) return placement.status();
  options.placement = std::move(placement).value();
  SWITCHYARD_RETURN_IF_ERROR(parse_fault("--kill", options.kill, false, options, options.faults.kill));
  SWITCHYARD_RETURN_IF_ERROR(parse_fault("--stall", options.stall, true, options, options.faults.stall));
  if (!kChecked && !(options.kill.empty() && options.stall.empty()))
    return invalid_argument("--kill, --stall: this build is unchecked: its kernels would wait forever");
  SWITCHYARD_RETURN_IF_ERROR(check_outputs(options));
  return check_transport(options);
}

}  // namespace switchyard::tools
