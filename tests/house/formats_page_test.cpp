// docs/formats.md says of every token format what the registry says.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "switchyard/token_format.hpp"

namespace switchyard {
namespace {

const char* text_of(ElementType element) {
  switch (element) {
    case ElementType::kBF16:
      return "bf16";
    case ElementType::kE4M3:
      return "e4m3";
    case ElementType::kE5M2:
      return "e5m2";
    case ElementType::kE2M3:
      return "e2m3";
    case ElementType::kE3M2:
      return "e3m2";
    case ElementType::kE2M1:
      return "e2m1";
  }
  return "?";
}
const char* text_of(ScaleType scale) {
  switch (scale) {
    case ScaleType::kNone:
      return "none";
    case ScaleType::kFloat:
      return "float";
    case ScaleType::kE8M0:
      return "e8m0";
    case ScaleType::kE4M3:
      return "e4m3";
  }
  return "?";
}
const char* text_of(ScalePlacement placement) {
  switch (placement) {
    case ScalePlacement::kNone:
      return "";
    case ScalePlacement::kTransposed:
      return "transposed";
    case ScalePlacement::kByRow:
      return "by row";
    case ScalePlacement::kTiled:
      return "tiled";
    case ScalePlacement::kPacked:
      return "packed";
  }
  return "?";
}

std::string line_of(const TokenFormatInfo& info, const std::string& kind, const std::string& type) {
  const std::string scales = info.scale == ScaleType::kNone
                                 ? "none"
                                 : std::string(text_of(info.scale)) + " per " +
                                       std::to_string(info.group_size) + ", " + text_of(info.placement);
  const std::string begin =
      info.row_alignment == 1 ? "any row" : "a multiple of " + std::to_string(info.row_alignment);
  return "| `" + kind + "` | " + info.name + " | `" + type + "` | " + text_of(info.element) + " | " + scales +
         " | " + std::to_string(info.hidden_multiple()) + " | " + begin + " |\n";
}

std::string expected_table() {
  std::string table =
      "| kind | `--format` | type | elements | scales | `hidden` is a multiple of | rows of an expert start "
      "at |\n"
      "|---|---|---|---|---|---|---|\n";
#define SWITCHYARD_LINE(kind, name, type, ...) table += line_of(info_of(TokenFormatKind::kind), #kind, #type);
  SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_LINE)
#undef SWITCHYARD_LINE
  return table;
}

TEST(FormatsPage, TheTableSaysOfEveryFormatWhatTheRegistrySays) {
  std::ostringstream page;
  page << std::ifstream(std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "docs/formats.md").rdbuf();
  EXPECT_NE(page.str().find("\n\n" + expected_table() + "\n"), std::string::npos)
      << "docs/formats.md, \"In ExpertParallel\", should have this table:\n\n"
      << expected_table();
}

}  // namespace
}  // namespace switchyard
