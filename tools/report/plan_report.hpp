// What `switchyard plan` says, for people, for programs and as pictures.
#pragma once

#include <string>
#include <vector>

#include "workload/plan/cluster_plan.hpp"
#include "workload/plan/published_steps.hpp"

namespace switchyard::tools {

// Plans of one shape over numbers of ranks.
struct PlanReport {
  std::string routing;  // as it was asked for
  uint64_t seed = 1;
  std::vector<StepPlan> plans;
};
void print_plan(const PlanReport& report);
std::string plan_json(const PlanReport& report);
// Times over ranks, and of each phase what each resource takes alone.
std::string plan_svg(const PlanReport& report);

// A placement beside the even one.
struct PlacementSide {
  std::vector<std::vector<int>> experts_of_rank;
  std::vector<std::vector<double>> load_of_seat;  // [rank][seat]
  std::vector<double> load_of_rank;
  StepPlan plan;

  double largest_load() const;
  double mean_load() const;
};
struct PlacementReport {
  std::string routing;
  int num_replicas = 0;
  PlacementSide before, after;
};
void print_placement(const PlacementReport& report);
std::string placement_json(const PlacementReport& report);
// A heat map: a column per rank, a cell per expert, darker where it has more rows.
std::string placement_svg(const PlacementReport& report);

struct PublishedRow {
  PublishedStep step;
  StepPlan plan;
  PublishedTimes times;

  bool is_close() const {
    return tools::is_close(plan.dispatch.us(), times.dispatch_us) &&
           tools::is_close(plan.combine.us(), times.combine_us);
  }
};
void print_published(const std::vector<PublishedRow>& rows);
std::string published_json(const std::vector<PublishedRow>& rows);

}  // namespace switchyard::tools
