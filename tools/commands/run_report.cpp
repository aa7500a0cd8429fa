#include "run_report.hpp"

#include <algorithm>
#include <cstdio>

#include "files/json_object.hpp"
#include "options.hpp"
#include "report/traffic_report.hpp"

namespace switchyard::tools {

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
  if (workload.matmuls == Matmuls::kFast)
    std::printf(
        "  matmuls   fast; weights %s, gate_up starts %s, combine %s\n", to_string(options.weights),
        options.gate_up_start == GateUpStart::kWithRows ? "with the rows of each expert" : "behind dispatch",
        options.combine_start == CombineStart::kWithExperts ? "takes each expert's rows" : "follows");
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
  if (options.combine_format != CombineFormat::kBF16 && !options.reduce_at_owner)
    std::printf("  combine in fp8   costs %.3g at most, %.3g %% rms, against bf16\n", report.combine_error,
                100 * report.relative_combine_error());
  if (options.reduce_at_owner)
    std::printf("  sums by owners   %scost %.3g at most, %.3g %% rms, against one sum of all rows in bf16\n",
                options.combine_format == CombineFormat::kFP8 ? "in fp8 " : "", report.combine_error,
                100 * report.relative_combine_error());
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
      .add("weights", to_string(options.weights))
      .add("gate_up_start", name_of(options.gate_up_start))
      .add("combine_start", to_string(options.combine_start))
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

}  // namespace switchyard::tools
