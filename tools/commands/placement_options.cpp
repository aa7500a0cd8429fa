#include "placement_options.hpp"

#include "files/placement_file.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "workload/expert_rows.hpp"
#include "workload/plan/plan_placement.hpp"

namespace switchyard::tools {

void add_placement_options(Command& command, PlacementOptions& options) {
  command
      .add_text(
          "--placement", options.file,
          "Which experts each rank holds: a file with a line per rank, expert,expert,..; an expert that\n"
          "several ranks hold has replicas")
      .show_type("FILE");
  command.add_number("--replicas", options.num_replicas, 0, kMaxExperts,
                     "Place experts, with so many replicas of those that most of the first tokens go to,\n"
                     "as `switchyard plan` does");
}

Result<std::optional<ExpertPlacement>> placement_of(const PlacementOptions& options,
                                                    const Workload& workload) {
  if (!options.file.empty()) {
    if (options.num_replicas != 0)
      return invalid_argument("--replicas: %d; it must be 0 with --placement, which says where replicas are",
                              options.num_replicas);
    Result<ExpertsOfRank> lists = read_placement_file(options.file, workload.n_ranks, workload.n_experts);
    if (!lists.ok()) return lists.status();
    Result<ExpertPlacement> placement =
        ExpertPlacement::from_lists(workload.n_experts, std::move(lists).value());
    if (!placement.ok()) return invalid_argument("--placement: %s", placement.status().message().c_str());
    return std::optional<ExpertPlacement>(std::move(placement).value());
  }
  if (options.num_replicas == 0) return std::optional<ExpertPlacement>();
  Result<ExpertPlacement> planned = plan_placement({.rows_of_expert = rows_of_experts(workload),
                                                    .n_ranks = workload.n_ranks,
                                                    .num_replicas = options.num_replicas});
  if (!planned.ok()) return planned.status();
  return std::optional<ExpertPlacement>(std::move(planned).value());
}

int num_replicas(const ExpertPlacement& placement) {
  int num_held = 0;
  for (const std::vector<int>& experts : placement.experts_of_rank())
    num_held += static_cast<int>(experts.size());
  return num_held - placement.n_experts();
}

}  // namespace switchyard::tools
