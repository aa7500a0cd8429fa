// Reads the text files that flags name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// A flag, the file that it names, and a line of it: what an error of a file begins with.
struct TextPlace {
  const char* flag;
  std::string path;
  int line = 0;  // from 1 on; 0: the file as a whole

  std::string text() const {
    const std::string name = std::string(flag) + ": " + path;
    return line == 0 ? name : name + " line " + std::to_string(line);
  }
};

// All lines, without their ends. A line without an end is one if it has text.
Result<std::vector<std::string>> read_lines(const TextPlace& file);

// Whole numbers of 64 bits with commas between them, and blanks around them; none in a blank line.
Result<std::vector<int64_t>> read_numbers(const TextPlace& place, std::string_view line);

inline bool is_comment(std::string_view line) { return line.starts_with('#'); }

}  // namespace switchyard::tools
