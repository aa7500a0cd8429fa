// Parses whole numbers.
#pragma once

#include <charconv>
#include <string>

namespace switchyard::tools {

// Parses all of the text as a decimal number: 010 is ten.
template <typename T>
bool is_whole_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace switchyard::tools
