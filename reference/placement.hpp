// Tells the reference where experts are.
#pragma once

#include "reference.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::reference {

// `num_seats` of every rank, 0: as many as needed. Ranks [0, P), [P, 2P), .. are groups; P is 0: all are one.
void place_experts(Step& step, const ExpertPlacement& placement, int num_seats, int p2p_world_size);
// As this world has them, all ranks of it.
void place_experts(Step& step, const ExpertParallel& ep);

}  // namespace switchyard::reference
