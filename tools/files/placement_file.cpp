#include "placement_file.hpp"

#include <algorithm>

#include "text_file.hpp"

namespace switchyard::tools {
namespace {

// The experts of one line, each in range and once.
Result<std::vector<int>> read_rank(const TextPlace& place, const std::string& line, int n_experts) {
  const Result<std::vector<int64_t>> numbers = read_numbers(place, line);
  if (!numbers.ok()) return numbers.status();
  std::vector<int> experts;
  for (const int64_t number : numbers.value()) {
    const int expert = static_cast<int>(number);
    if (number < 0 || number >= n_experts)
      return invalid_argument("%s: expert %lld must be 0..%d (--experts)", place.text().c_str(),
                              static_cast<long long>(number), n_experts - 1);
    if (std::find(experts.begin(), experts.end(), expert) != experts.end())
      return invalid_argument("%s has expert %d twice; a rank holds an expert once at most",
                              place.text().c_str(), expert);
    experts.push_back(expert);
  }
  return experts;
}

Status check_all_are_placed(const TextPlace& file, const ExpertsOfRank& placement, int n_experts) {
  std::vector<bool> is_placed(static_cast<size_t>(n_experts));
  for (const std::vector<int>& experts : placement)
    for (const int expert : experts) is_placed[static_cast<size_t>(expert)] = true;
  const auto missing = std::find(is_placed.begin(), is_placed.end(), false);
  if (missing == is_placed.end()) return Status();
  return invalid_argument("%s has expert %td on no rank; each of 0..%d (--experts) must be on one",
                          file.text().c_str(), missing - is_placed.begin(), n_experts - 1);
}

}  // namespace

Result<ExpertsOfRank> read_placement_file(const std::string& path, int n_ranks, int n_experts) {
  const TextPlace file{"--placement", path};
  const Result<std::vector<std::string>> lines = read_lines(file);
  if (!lines.ok()) return lines.status();
  ExpertsOfRank placement;
  for (size_t i = 0; i < lines.value().size(); ++i) {
    const std::string& line = lines.value()[i];
    if (is_comment(line)) continue;
    Result<std::vector<int>> experts = read_rank({file.flag, path, static_cast<int>(i) + 1}, line, n_experts);
    if (!experts.ok()) return experts.status();
    placement.push_back(std::move(experts).value());
  }
  if (placement.empty() || (n_ranks != 0 && placement.size() != static_cast<size_t>(n_ranks)))
    return invalid_argument("%s has lines for %zu ranks; it must have one for each rank (%d)",
                            file.text().c_str(), placement.size(), std::max(n_ranks, 1));
  SWITCHYARD_RETURN_IF_ERROR(check_all_are_placed(file, placement, n_experts));
  return placement;
}

std::string placement_text(const ExpertsOfRank& experts_of_rank) {
  std::string text;
  for (const std::vector<int>& experts : experts_of_rank) {
    for (size_t i = 0; i < experts.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(experts[i]);
    text += '\n';
  }
  return text;
}

}  // namespace switchyard::tools
