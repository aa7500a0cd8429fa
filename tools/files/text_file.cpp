#include "text_file.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace switchyard::tools {

Result<std::vector<std::string>> read_lines(const TextPlace& file) {
  if (std::error_code error; std::filesystem::is_directory(file.path, error))
    return invalid_argument("%s is a directory; it must be a file", file.text().c_str());
  std::ifstream stream(file.path);
  if (!stream) return invalid_argument("%s cannot be read: %s", file.text().c_str(), std::strerror(errno));
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
  }
  if (stream.bad()) return invalid_argument("%s cannot be read to its end", file.text().c_str());
  return lines;
}

Result<std::vector<int64_t>> read_numbers(const TextPlace& place, std::string_view line) {
  const char *position = line.data(), *const end = position + line.size();
  const auto skip_blanks = [&] {
    while (position < end && (*position == ' ' || *position == '\t')) ++position;
    return position == end;
  };
  std::vector<int64_t> numbers;
  if (skip_blanks()) return numbers;
  for (;;) {
    int64_t number = 0;
    skip_blanks();
    const auto [after, error] = std::from_chars(position, end, number);
    if (error != std::errc())
      return invalid_argument(
          "%s, column %td: %s", place.text().c_str(), position - line.data() + 1,
          error == std::errc::result_out_of_range ? "the number does not fit 64 bits" : "not a whole number");
    numbers.push_back(number);
    position = after;
    if (skip_blanks()) return numbers;
    if (*position++ != ',')
      return invalid_argument("%s: numbers must be separated by commas", place.text().c_str());
  }
}

}  // namespace switchyard::tools
