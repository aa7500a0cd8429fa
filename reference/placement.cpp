#include "placement.hpp"

namespace switchyard::reference {

void place_experts(Step& step, const ExpertPlacement& placement, int num_seats, int p2p_world_size) {
  step.experts_of_rank = placement.experts_of_rank();
  step.num_seats = num_seats;
  step.group_of_rank.clear();
  for (int rank = 0; p2p_world_size != 0 && rank < step.n_ranks; ++rank)
    step.group_of_rank.push_back(rank / p2p_world_size);
}

void place_experts(Step& step, const ExpertParallel& ep) {
  const ExpertPlacement& placement = ep.placement();
  const bool is_plain = placement.is_plain() && ep.n_local_experts() == placement.num_seats_per_rank();
  if (!is_plain) place_experts(step, placement, ep.n_local_experts(), ep.config().p2p_world_size);
}

}  // namespace switchyard::reference
