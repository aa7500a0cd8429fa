// The file of measured counts: how many rows each expert got. Either numbers with commas or line ends between
// them, expert 0 first, and lines that start with #; or JSON: a list of them, or an object that has one as
// "tokens_per_expert".
#pragma once

#include <string>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::tools {

inline constexpr int64_t kMaxCount = int64_t{1} << 53;  // what a double holds exactly

// Reads what --counts names: 1..max_experts whole numbers 0..kMaxCount, not all of them 0.
Result<std::vector<double>> read_counts_file(const std::string& path, int max_experts);

}  // namespace switchyard::tools
