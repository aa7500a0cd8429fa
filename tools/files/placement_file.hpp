// The file of a placement: which experts each rank holds. A line per rank, in order, with the ids of its
// experts and commas between them; an empty line is a rank without experts. Lines that start with # are no
// ranks.
#pragma once

#include <string>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::tools {

using ExpertsOfRank = std::vector<std::vector<int>>;  // [rank]

// Reads what --placement names. Every expert 0..n_experts - 1 must be on some rank, and on each rank at most
// once. `n_ranks` 0: as many as there are lines.
Result<ExpertsOfRank> read_placement_file(const std::string& path, int n_ranks, int n_experts);

// The text of such a file, which is read as the same placement.
std::string placement_text(const ExpertsOfRank& experts_of_rank);

}  // namespace switchyard::tools
