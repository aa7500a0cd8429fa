// What `switchyard plan` may be told, read and checked.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "workload/plan/cluster_plan.hpp"

namespace switchyard::tools {

struct PlanOptions {
  PlanShape shape{.protocol = Protocol::kAutomatic};
  Cluster cluster;  // n_ranks is one of ranks
  std::string ranks_text = "8..512";
  std::string routing = "uniform";
  std::string counts, placement;  // files
  std::string write_placement;
  int replicas = 0;
  int experts_per_rank = 0;
  uint64_t seed = 1;
  bool shows_published = false;
  std::string json, svg;

  // Which of them were given.
  bool has_tokens = false, has_top_k = false, has_experts = false, has_replicas = false;

  // From here on: what finish_plan_options() makes of them.
  std::vector<int> ranks;
  std::vector<std::vector<int32_t>> file_ids;     // of a routing file, by rank
  std::vector<double> count_of_expert;            // of a file of counts
  std::vector<std::vector<int>> experts_of_rank;  // of a placement file

  bool plans_placement() const { return has_replicas || !write_placement.empty(); }
  bool prints_text() const { return json != "-" && svg != "-" && write_placement != "-"; }
};

// Numbers of ranks: 8, a list as 8,12,64, or a range as 8..512, which doubles from the first on; or a list of
// these. In ascending order, each once.
Result<std::vector<int>> read_ranks(const std::string& text);

// Returns what notes, when the command works, which options were given.
std::function<void(PlanOptions&)> add_plan_options(Command& command, PlanOptions& options);
// Reads the files, and checks the options beyond the range of each.
Status finish_plan_options(PlanOptions& options);

}  // namespace switchyard::tools
