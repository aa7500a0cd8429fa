// `switchyard plan`: what a step would take on a cluster that is not here, and which ranks should hold which
// experts.
#include <memory>

#include "commands.hpp"
#include "files/output.hpp"
#include "files/placement_file.hpp"
#include "options.hpp"
#include "plan_options.hpp"
#include "report/plan_report.hpp"
#include "workload/plan/plan_placement.hpp"
#include "workload/plan/plan_routing.hpp"

namespace switchyard::tools {
namespace {

std::string routing_name(const PlanOptions& options) {
  return options.counts.empty() ? options.routing : options.counts;
}

PlanRouting make_routing(const PlanOptions& options, int n_ranks) {
  const PlanShape& shape = options.shape;
  if (!options.file_ids.empty()) return routing_of_ids(options.file_ids, shape.n_experts, shape.top_k);
  const PlanDraw draw{n_ranks, shape.max_tokens_per_rank, shape.top_k,
                      !options.count_of_expert.empty() ? options.count_of_expert
                      : options.routing == "zipf"      ? zipf_popularity(shape.n_experts)
                                                       : uniform_popularity(shape.n_experts),
                      options.seed};
  return options.routing == "one-expert" ? one_expert_routing(draw) : draw_routing(draw);
}

Result<StepPlan> make_plan(const PlanOptions& options, const PlanRouting& routing,
                           const ExpertPlacement& placement) {
  Cluster cluster = options.cluster;
  cluster.n_ranks = placement.n_ranks();
  PlanShape shape = options.shape;
  shape.protocol = choose_protocol(config_of(shape, cluster, placement), cluster.n_ranks).protocol;
  Result<StepPlan> plan = plan_step(shape, cluster, routing, placement);
  return plan.ok() ? std::move(plan) : Result<StepPlan>(with_flags(plan.status()));
}

Result<ExitCode> plan_over_ranks(const PlanOptions& options) {
  PlanReport report{routing_name(options), options.seed, {}};
  for (const int n_ranks : options.ranks) {
    const Result<ExpertPlacement> placement =
        options.experts_of_rank.empty()
            ? ExpertPlacement::even(options.shape.n_experts, n_ranks)
            : ExpertPlacement::from_lists(options.shape.n_experts, options.experts_of_rank);
    if (!placement.ok()) return placement.status();
    Result<StepPlan> plan = make_plan(options, make_routing(options, n_ranks), placement.value());
    if (!plan.ok()) return plan.status();
    report.plans.push_back(std::move(plan).value());
  }
  if (options.prints_text()) print_plan(report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, plan_json(report)));
  if (!options.svg.empty())
    SWITCHYARD_RETURN_IF_ERROR(write_output({"--svg", options.svg}, plan_svg(report)));
  return kVerified;
}

Result<PlacementSide> make_side(const PlanOptions& options, const PlanRouting& routing,
                                const PlacementGoal& goal, const ExpertPlacement& placement) {
  Result<StepPlan> plan = make_plan(options, routing, placement);
  if (!plan.ok()) return plan.status();
  return PlacementSide{
      placement.experts_of_rank(), load_of_seats(placement, goal.rows_of_expert, goal.group_of_rank),
      load_of_ranks(placement, goal.rows_of_expert, goal.group_of_rank), std::move(plan).value()};
}

Result<ExitCode> plan_and_write_placement(const PlanOptions& options) {
  const int n_ranks = options.ranks.front();
  const PlanRouting routing = make_routing(options, n_ranks);
  PlacementGoal goal{options.count_of_expert.empty() ? rows_per_expert(routing, options.shape.n_experts)
                                                     : options.count_of_expert,
                     n_ranks, options.replicas, options.experts_per_rank};
  for (int rank = 0; rank < n_ranks; ++rank)
    goal.group_of_rank.push_back(rank / options.cluster.ranks_per_node);
  const Result<ExpertPlacement> even = ExpertPlacement::even(options.shape.n_experts, n_ranks);
  if (!even.ok()) return even.status();
  const Result<ExpertPlacement> planned = plan_placement(goal);
  if (!planned.ok()) return planned.status();
  Result<PlacementSide> before = make_side(options, routing, goal, even.value());
  if (!before.ok()) return before.status();
  Result<PlacementSide> after = make_side(options, routing, goal, planned.value());
  if (!after.ok()) return after.status();
  const PlacementReport report{routing_name(options), options.replicas, std::move(before).value(),
                               std::move(after).value()};
  if (options.prints_text()) print_placement(report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, placement_json(report)));
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--write-placement", options.write_placement},
                                          placement_text(planned.value().experts_of_rank())));
  if (!options.svg.empty())
    SWITCHYARD_RETURN_IF_ERROR(write_output({"--svg", options.svg}, placement_svg(report)));
  return kVerified;
}

Result<ExitCode> show_published(const PlanOptions& options) {
  std::vector<PublishedRow> rows;
  for (const PublishedStep& step : published_steps()) {
    Result<StepPlan> plan = plan_published(step);
    if (!plan.ok()) return plan.status();
    const PublishedTimes times = published_times(step, plan.value());
    rows.push_back({step, std::move(plan).value(), times});
  }
  if (options.prints_text()) print_published(rows);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, published_json(rows)));
  return kVerified;
}

Result<ExitCode> plan_and_report(PlanOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(finish_plan_options(options));
  if (options.shows_published) return show_published(options);
  return options.plans_placement() ? plan_and_write_placement(options) : plan_over_ranks(options);
}

}  // namespace

void add_plan_command(CommandLine& line) {
  Command command = line.add_command(
      "plan", "Predict dispatch and combine on a cluster, and plan which ranks hold which experts");
  auto options = std::make_shared<PlanOptions>();
  const auto note_given = add_plan_options(command, *options);
  command.set_work([=] {
    note_given(*options);
    return plan_and_report(*options);
  });
}

}  // namespace switchyard::tools
