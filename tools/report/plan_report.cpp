#include "plan_report.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "files/json_object.hpp"

namespace switchyard::tools {
namespace {

uint64_t largest(const std::vector<uint64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}
uint64_t largest_link(const RankBytes& bytes) {
  return std::max(largest(bytes.link_out), largest(bytes.link_in));
}
uint64_t largest_nic(const RankBytes& bytes) {
  return std::max(largest(bytes.nic_out), largest(bytes.nic_in));
}
double mega(uint64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

void print_shape(const StepPlan& plan, const std::string& routing) {
  const PlanShape& shape = plan.shape;
  std::printf("%d tokens per rank, hidden %d, top-%d, %d experts, %s routing\n", shape.max_tokens_per_rank,
              shape.hidden, shape.top_k, shape.n_experts, routing.c_str());
  std::printf("rows %s, dispatch %s per %s, combine %s per %s\n", to_string(shape.layout),
              to_string(shape.format), to_string(shape.message), to_string(shape.combine_format),
              to_string(shape.combine_message));
  const Cluster& cluster = plan.cluster;
  std::printf(
      "nodes of %d ranks, a link of %g GB/s and a NIC of %g GB/s for each rank, latency %g and %g us\n\n",
      cluster.ranks_per_node, cluster.link_gb_s, cluster.nic_gb_s, cluster.link_latency_us,
      cluster.nic_latency_us);
}

void print_phase(const char* name, const PhasePlan& phase) {
  std::printf("%-8s %10.1f  %-8s %10.1f %10.1f %10.1f %10.1f  %9.3f %9.3f %11.3f\n", name, phase.us(),
              to_string(phase.bound()), phase.memory_us, phase.link_us, phase.nic_us, phase.latency_us,
              mega(largest_link(phase.bytes)), mega(largest_nic(phase.bytes)),
              mega(largest(phase.bytes.memory)));
}

// The reason is in the words of the library's configuration.
std::string arena_text(const StepPlan& plan) {
  if (!plan.why_no_arena.empty()) return "no arena: " + plan.why_no_arena;
  char text[48];
  std::snprintf(text, sizeof(text), "arena %.2f GB per rank", static_cast<double>(plan.arena_bytes) * 1e-9);
  return text;
}

void print_calibration() {
  std::printf("\nThe model's constants:\n");
  for (const CalibratedNumber& number : calibration().numbers())
    std::printf("  %-38s %8g %-5s %s\n", number.name, number.value, number.unit, number.source);
}

JsonObject phase_json(const PhasePlan& phase) {
  JsonObject json;
  json.add("us", phase.us())
      .add("bound", to_string(phase.bound()))
      .add("memory_us", phase.memory_us)
      .add("link_us", phase.link_us)
      .add("nic_us", phase.nic_us)
      .add("latency_us", phase.latency_us)
      .add("bytes_to_other_ranks", phase.rows.to_other_ranks)
      .add("bytes_to_other_groups", phase.rows.to_other_groups)
      .add("link_bytes_out", phase.bytes.link_out)
      .add("link_bytes_in", phase.bytes.link_in)
      .add("nic_bytes_out", phase.bytes.nic_out)
      .add("nic_bytes_in", phase.bytes.nic_in)
      .add("memory_bytes", phase.bytes.memory);
  return json;
}

JsonObject step_json(const StepPlan& plan) {
  const Cluster& cluster = plan.cluster;
  const PlanShape& shape = plan.shape;
  JsonObject json;
  json.add("ranks", cluster.n_ranks)
      .add("ranks_per_node", cluster.ranks_per_node)
      .add("ranks_per_device", cluster.ranks_per_device)
      .add("link_gb_s", cluster.link_gb_s)
      .add("nic_gb_s", cluster.nic_gb_s)
      .add("link_latency_us", cluster.link_latency_us)
      .add("nic_latency_us", cluster.nic_latency_us)
      .add("max_tokens_per_rank", shape.max_tokens_per_rank)
      .add("hidden", shape.hidden)
      .add("experts", shape.n_experts)
      .add("top_k", shape.top_k)
      .add("n_sms", shape.n_sms)
      .add("protocol", to_string(shape.protocol))
      .add("format", to_string(shape.format))
      .add("combine_format", to_string(shape.combine_format))
      .add("layout", to_string(shape.layout))
      .add("message", to_string(shape.message))
      .add("combine_message", to_string(shape.combine_message))
      .add("messages_per_token", plan.messages_per_token)
      .add("ranks_per_token", plan.ranks_per_token)
      .add("nodes_per_token", plan.nodes_per_token)
      .add("rows_of_rank", plan.rows_of_rank)
      .add("arena_bytes", plan.arena_bytes)
      .add("why_no_arena", plan.why_no_arena)
      .add("dispatch", phase_json(plan.dispatch))
      .add("combine", phase_json(plan.combine))
      .add("step_us", plan.step_us);
  return json;
}

std::vector<JsonObject> calibration_json() {
  std::vector<JsonObject> numbers;
  for (const CalibratedNumber& number : calibration().numbers()) {
    JsonObject json;
    json.add("name", number.name)
        .add("value", number.value)
        .add("unit", number.unit)
        .add("source", number.source);
    numbers.push_back(std::move(json));
  }
  return numbers;
}

}  // namespace

void print_plan(const PlanReport& report) {
  print_shape(report.plans.front(), report.routing);
  std::printf(
      "ranks nodes phase            us  bound     memory us    link us     NIC us latency us    link MB    "
      "NIC MB   memory MB\n");
  for (const StepPlan& plan : report.plans) {
    std::printf("%5d %5d ", plan.cluster.n_ranks, plan.cluster.num_nodes());
    print_phase("dispatch", plan.dispatch);
    std::printf("%12s", "");
    print_phase("combine", plan.combine);
    std::printf("%12s%-8s %10.1f  %s, %.2f messages per token, %.2f distinct ranks; %s\n", "", "step",
                plan.step_us, to_string(plan.shape.protocol), plan.messages_per_token, plan.ranks_per_token,
                arena_text(plan).c_str());
  }
  std::printf(
      "\nA phase takes its latency and the longest of memory, link and NIC. MB are those of the rank with\n"
      "most, the larger of in and out; memory counts reads and writes.\n");
  print_calibration();
}

std::string plan_json(const PlanReport& report) {
  std::vector<JsonObject> plans;
  for (const StepPlan& plan : report.plans) plans.push_back(step_json(plan));
  JsonObject json;
  json.add("routing", report.routing)
      .add("seed", report.seed)
      .add("plans", std::move(plans))
      .add("calibration", calibration_json());
  return json.to_text();
}

double PlacementSide::largest_load() const {
  return *std::max_element(load_of_rank.begin(), load_of_rank.end());
}
double PlacementSide::mean_load() const {
  return std::accumulate(load_of_rank.begin(), load_of_rank.end(), 0.0) /
         static_cast<double>(load_of_rank.size());
}

void print_placement(const PlacementReport& report) {
  print_shape(report.before.plan, report.routing);
  const size_t num_ranks = report.before.load_of_rank.size();
  std::printf("                     rows of a rank, before and after       experts\n");
  constexpr size_t kMaxShown = 64;
  for (size_t rank = 0; rank < std::min(num_ranks, kMaxShown); ++rank)
    std::printf("  rank %-3zu      %12.0f -> %12.0f   %8zu -> %zu\n", rank, report.before.load_of_rank[rank],
                report.after.load_of_rank[rank], report.before.experts_of_rank[rank].size(),
                report.after.experts_of_rank[rank].size());
  if (num_ranks > kMaxShown) std::printf("  .. %zu ranks more\n", num_ranks - kMaxShown);
  const auto line = [&](const char* name, const char* format, auto value) {
    std::printf("  %-22s", name);
    std::printf(format, value(report.before));
    std::printf(" -> ");
    std::printf(format, value(report.after));
    std::printf("\n");
  };
  line("largest / mean load", "%10.3f", [](const PlacementSide& side) {
    return side.mean_load() == 0 ? 1 : side.largest_load() / side.mean_load();
  });
  line("dispatch, link MB", "%10.3f",
       [](const PlacementSide& side) { return mega(largest_link(side.plan.dispatch.bytes)); });
  line("dispatch, NIC MB", "%10.3f",
       [](const PlacementSide& side) { return mega(largest_nic(side.plan.dispatch.bytes)); });
  line("combine, link MB", "%10.3f",
       [](const PlacementSide& side) { return mega(largest_link(side.plan.combine.bytes)); });
  line("combine, NIC MB", "%10.3f",
       [](const PlacementSide& side) { return mega(largest_nic(side.plan.combine.bytes)); });
  line("dispatch us", "%10.1f", [](const PlacementSide& side) { return side.plan.dispatch.us(); });
  line("combine us", "%10.1f", [](const PlacementSide& side) { return side.plan.combine.us(); });
  line("step us", "%10.1f", [](const PlacementSide& side) { return side.plan.step_us; });
  print_calibration();
}

std::string placement_json(const PlacementReport& report) {
  const auto side_json = [](const PlacementSide& side) {
    std::vector<JsonObject> ranks;
    for (size_t rank = 0; rank < side.load_of_rank.size(); ++rank) {
      JsonObject json;
      json.add("experts", side.experts_of_rank[rank])
          .add("rows", side.load_of_rank[rank])
          .add("rows_of_expert", side.load_of_seat[rank]);
      ranks.push_back(std::move(json));
    }
    JsonObject json;
    json.add("largest_load", side.largest_load())
        .add("mean_load", side.mean_load())
        .add("ranks", std::move(ranks))
        .add("plan", step_json(side.plan));
    return json;
  };
  JsonObject json;
  json.add("routing", report.routing)
      .add("replicas", report.num_replicas)
      .add("before", side_json(report.before))
      .add("after", side_json(report.after))
      .add("calibration", calibration_json());
  return json.to_text();
}

void print_published(const std::vector<PublishedRow>& rows) {
  std::printf("%-19s %-58s %28s   %28s\n%-78s %9s %9s %8s   %9s %9s %8s\n", "", "", "dispatch, us",
              "combine, us", "", "model", "figure", "ratio", "model", "figure", "ratio");
  const auto print_pair = [](double model_us, double published_us, const char* end) {
    if (published_us == 0)
      std::printf(" %9.1f %9s %8s%s", model_us, "", "", end);
    else
      std::printf(" %9.1f %9.1f %8.2f%s", model_us, published_us, model_us / published_us, end);
  };
  int num_reasons = 0;
  for (const PublishedRow& row : rows) {
    std::printf("%-19s %-58s", row.step.who, row.step.setting.c_str());
    print_pair(row.plan.dispatch.us(), row.times.dispatch_us, "  ");
    print_pair(row.plan.combine.us(), row.times.combine_us, "");
    if (!row.is_close()) std::printf("  (%d)", ++num_reasons);
    std::printf("\n");
  }
  std::printf(
      "\nSwitchyard's figures were measured here; all others are published, GB/s turned into times.\n");
  num_reasons = 0;
  for (const PublishedRow& row : rows)
    if (!row.is_close()) std::printf("(%d) %s\n", ++num_reasons, row.step.reason);
  print_calibration();
}

std::string published_json(const std::vector<PublishedRow>& rows) {
  std::vector<JsonObject> steps;
  for (const PublishedRow& row : rows) {
    JsonObject json;
    json.add("who", row.step.who)
        .add("setting", row.step.setting)
        .add("measured_here", row.step.is_measured_here)
        .add("published_dispatch_us", row.times.dispatch_us)
        .add("published_combine_us", row.times.combine_us)
        .add("close", row.is_close())
        .add("reason", row.is_close() ? "" : row.step.reason)
        .add("plan", step_json(row.plan));
    steps.push_back(std::move(json));
  }
  JsonObject json;
  json.add("published", std::move(steps)).add("calibration", calibration_json());
  return json.to_text();
}

}  // namespace switchyard::tools
