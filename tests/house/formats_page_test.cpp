// docs/formats.md says of every token format what the registry says.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "switchyard/token_format.hpp"

namespace switchyard {
namespace {

std::string line_of(const TokenFormatInfo& info, const std::string& kind, const std::string& type) {
  const std::string scales = info.scale == ScaleType::kNone
                                 ? "none"
                                 : std::string(to_string(info.scale)) + " per " +
                                       std::to_string(info.group_size) + ", " + to_string(info.placement);
  const std::string begin =
      info.row_alignment == 1 ? "any row" : "a multiple of " + std::to_string(info.row_alignment);
  return "| `" + kind + "` | " + info.name + " | `" + type + "` | " + to_string(info.element) + " | " +
         scales + " | " + std::to_string(info.hidden_multiple()) + " | " + begin + " |\n";
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
