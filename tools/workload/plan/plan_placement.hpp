// Which ranks should hold which experts: popular experts get replicas, and ranks get as equal loads as
// possible.
#pragma once

#include <vector>

#include "switchyard/types/expert_placement.hpp"

namespace switchyard::tools {

struct PlacementGoal {
  std::vector<double> rows_of_expert;  // [expert]: what each is to work on, finite and >= 0
  int n_ranks = 8;
  int num_replicas = 0;                 // beyond one of each expert; no expert has more than one per rank
  int experts_per_rank = 0;             // the most that a rank may hold; 0: as few as hold all replicas
  std::vector<int> group_of_rank = {};  // as in ExpertPlacement::seat_for()
};

// Plans a placement: the expert with most rows per replica gets the next replica, as long as there are some
// to give; then replicas go, those with most rows first, each to the rank with the least load that has a seat
// and does not hold the expert; then ranks exchange experts as long as that lowers the largest load. Replicas
// are taken to have equal shares at first, and in the end those that seat_for() gives them. If even division
// loads the fullest rank less, that is the plan. The error says what does not fit.
Result<ExpertPlacement> plan_placement(const PlacementGoal& goal);

// [rank]: the rows that its experts work on, if every rank has an equal share of each expert's tokens, and
// replicas are chosen by ExpertPlacement::seat_for().
std::vector<double> load_of_ranks(const ExpertPlacement& placement, const std::vector<double>& rows_of_expert,
                                  const std::vector<int>& group_of_rank);
// [rank][seat]: the same by expert.
std::vector<std::vector<double>> load_of_seats(const ExpertPlacement& placement,
                                               const std::vector<double>& rows_of_expert,
                                               const std::vector<int>& group_of_rank);

}  // namespace switchyard::tools
