// The token formats that a test of whole steps tries.
#pragma once

#include <algorithm>
#include <vector>

#include "sweep.hpp"
#include "switchyard/token_format.hpp"

namespace switchyard::testing_support {

// All of them. Where a few cases are to do: the first of each way in which scales are placed and tokens
// encoded, which decides who writes what, and when. Formats of one way differ in their codes alone, and every
// format's codes are made under every sanitizer in tests/format.
inline std::vector<TokenFormatKind> step_formats() {
  std::vector<TokenFormatKind> formats;
  for (const TokenFormatKind kind : kTokenFormatKinds) {
    const auto works_as_kind = [&](TokenFormatKind other) {
      return info_of(other).placement == info_of(kind).placement &&
             info_of(other).encoding == info_of(kind).encoding;
    };
    if (!kFewCases || std::none_of(formats.begin(), formats.end(), works_as_kind)) formats.push_back(kind);
  }
  return formats;
}

// Those of them that are not bf16.
inline std::vector<TokenFormatKind> encoded_step_formats() {
  std::vector<TokenFormatKind> formats = step_formats();
  std::erase(formats, TokenFormatKind::kBF16);
  return formats;
}

}  // namespace switchyard::testing_support
