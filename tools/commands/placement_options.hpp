// --placement and --replicas: where experts are.
#pragma once

#include <optional>
#include <string>

#include "command_line.hpp"
#include "switchyard/types/expert_placement.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {

struct PlacementOptions {
  std::string file;
  int num_replicas = 0;
};

void add_placement_options(Command& command, PlacementOptions& options);
// From the file, or even; with replicas of what the workload's first step needs most. Nothing: none was asked
// for.
Result<std::optional<ExpertPlacement>> placement_of(const PlacementOptions& options,
                                                    const Workload& workload);

// Those beyond the first of each expert.
int num_replicas(const ExpertPlacement& placement);

}  // namespace switchyard::tools
