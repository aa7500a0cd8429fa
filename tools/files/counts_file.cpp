#include "counts_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text_file.hpp"

namespace switchyard::tools {
namespace {

constexpr const char* kMember = "tokens_per_expert";

Status check_count(const TextPlace& place, size_t expert, int64_t count) {
  if (count >= 0 && count <= kMaxCount) return Status();
  return invalid_argument("%s: the count of expert %zu is %lld; it must be 0..%lld", place.text().c_str(),
                          expert, static_cast<long long>(count), static_cast<long long>(kMaxCount));
}

Result<std::vector<double>> read_text(const TextPlace& file, const std::vector<std::string>& lines) {
  std::vector<double> counts;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (is_comment(lines[i])) continue;
    const TextPlace place{file.flag, file.path, static_cast<int>(i) + 1};
    const Result<std::vector<int64_t>> numbers = read_numbers(place, lines[i]);
    if (!numbers.ok()) return numbers.status();
    for (const int64_t number : numbers.value()) {
      SWITCHYARD_RETURN_IF_ERROR(check_count(place, counts.size(), number));
      counts.push_back(static_cast<double>(number));
    }
  }
  return counts;
}

Result<std::vector<double>> read_json(const TextPlace& file, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("%s is neither numbers nor JSON", file.text().c_str());
  const bool has_member = json.is_object() && json.contains(kMember);
  const nlohmann::json& list = has_member ? json.at(kMember) : json;
  if (!list.is_array())
    return invalid_argument("%s is JSON without a list; it must be one, or have one as \"%s\"",
                            file.text().c_str(), kMember);
  std::vector<double> counts;
  for (const nlohmann::json& number : list) {
    if (!number.is_number_integer() || (number.is_number_unsigned() && number.get<uint64_t>() > INT64_MAX))
      return invalid_argument("%s: the count of expert %zu is no whole number 0..%lld", file.text().c_str(),
                              counts.size(), static_cast<long long>(kMaxCount));
    SWITCHYARD_RETURN_IF_ERROR(check_count(file, counts.size(), number.get<int64_t>()));
    counts.push_back(number.get<double>());
  }
  return counts;
}

bool is_json(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos) return line[first] == '[' || line[first] == '{';
  }
  return false;
}

}  // namespace

Result<std::vector<double>> read_counts_file(const std::string& path, int max_experts) {
  const TextPlace file{"--counts", path};
  const Result<std::vector<std::string>> lines = read_lines(file);
  if (!lines.ok()) return lines.status();
  Result<std::vector<double>> counts =
      is_json(lines.value()) ? read_json(file, lines.value()) : read_text(file, lines.value());
  if (!counts.ok()) return counts;
  const size_t num_counts = counts.value().size();
  if (num_counts == 0 || num_counts > static_cast<size_t>(max_experts))
    return invalid_argument("%s has %zu counts; it must have 1..%d", file.text().c_str(), num_counts,
                            max_experts);
  if (std::all_of(counts.value().begin(), counts.value().end(), [](double count) { return count == 0; }))
    return invalid_argument("%s has counts of 0 alone; some expert must have more", file.text().c_str());
  return counts;
}

}  // namespace switchyard::tools
