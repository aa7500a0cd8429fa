// The architecture as a test: a layer includes lower numbers only, assembly stays in target/, and no header
// of Torch, MPI or SHMEM is needed to include ours.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace switchyard {
namespace {

// docs: architecture, "Layers".
const std::map<std::string, int> kLayerOfFolder = {
    {"base", 0}, {"target", 1}, {"format", 2},    {"sync", 2},      {"schedule", 2},
    {"ep", 3},   {"gemm", 3},   {"attention", 3}, {"transport", 4}, {"runtime", 5}};

// Folders that are given what they need of a target, so that they run anywhere.
const std::set<std::string> kFoldersWithoutTarget = {"schedule"};

// Without comments, each line in its place. Literals are left alone: headers hold none that look like a
// comment.
std::string without_comments(const std::string& text) {
  std::string code;
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (text.compare(i, 2, "/*") == 0) {
      const size_t end = std::min(text.find("*/", i + 2), text.size());
      for (; i < end; ++i)
        if (text[i] == '\n') code += '\n';
      i = std::min(end + 2, text.size());
    } else {
      code += text[i++];
    }
  }
  return code;
}

// The headers of Torch, MPI and SHMEM begin with one of these words, which then end.
bool is_foreign(const std::string& header) {
  const std::string first_word = header.substr(0, header.find_first_of("./_"));
  for (const char* word :
       {"torch", "ATen", "c10", "mpi", "mpicxx", "shmem", "shmemx", "nvshmem", "nvshmemx", "oshmem"})
    if (first_word == word) return true;
  return false;
}

// What is wrong with including `header` from a file of `folder`; empty if nothing is.
std::string fault_of_include(const std::string& folder, const std::string& header, bool quoted) {
  if (is_foreign(header)) return "needs " + header;
  const std::string ours = "switchyard/";
  if (!header.starts_with(ours))
    return quoted ? "includes " + header + ", which is not named from switchyard/ on" : "";
  const std::string included_folder = header.substr(ours.size(), header.find('/', ours.size()) - ours.size());
  const auto included = kLayerOfFolder.find(included_folder);
  if (included == kLayerOfFolder.end()) return "includes " + header + " of an unknown folder";
  if (included_folder == "target" && kFoldersWithoutTarget.contains(folder))
    return "of " + folder + "/ includes " + header + ", but runs without a target";
  const int layer = kLayerOfFolder.at(folder);
  if (included_folder == folder || included->second < layer) return "";
  return "of layer " + std::to_string(layer) + " includes " + header + " of layer " +
         std::to_string(included->second);
}

// The words of a line of code, and the characters between them that are not spaces, each on its own.
std::vector<std::string> tokens_of(const std::string& line) {
  std::vector<std::string> tokens;
  bool in_word = false;
  for (const char c : line) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (is_word && in_word)
      tokens.back() += c;
    else if (std::isspace(static_cast<unsigned char>(c)) == 0)
      tokens.emplace_back(1, c);
    in_word = is_word;
  }
  return tokens;
}

// Every fault of one header, as "file:line: what".
std::vector<std::string> faults_of(const std::string& file, const std::string& folder,
                                   const std::string& text) {
  std::vector<std::string> faults;
  std::istringstream lines(without_comments(text));
  std::string line;
  for (int line_number = 1; std::getline(lines, line); ++line_number) {
    const std::string place = file + ":" + std::to_string(line_number) + ": ";
    const std::vector<std::string> tokens = tokens_of(line);
    if (tokens.size() > 2 && tokens[0] == "#" && tokens[1] == "include") {
      const size_t begin = line.find_first_of("<\"") + 1;
      const std::string header = line.substr(begin, line.find_first_of(">\"", begin) - begin);
      const std::string fault = fault_of_include(folder, header, tokens[2] == "\"");
      if (!fault.empty()) faults.push_back(place + fault);
    }
    if (folder == "target") continue;
    for (const char* assembly : {"asm", "__asm", "__asm__"})
      if (std::find(tokens.begin(), tokens.end(), assembly) != tokens.end())
        faults.push_back(place + "assembly outside target/");
  }
  return faults;
}

TEST(Layers, HeadersIncludeLowerLayersOnly) {
  const std::filesystem::path root = std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "include/switchyard";
  std::set<std::string> folders_seen;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    const std::filesystem::path path = entry.path().lexically_relative(root);
    const std::string folder = path.begin()->string();
    ASSERT_TRUE(kLayerOfFolder.contains(folder)) << path << " is in no layer";
    folders_seen.insert(folder);
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (const std::string& fault : faults_of(entry.path().string(), folder, text.str()))
      ADD_FAILURE() << fault;
  }
  for (const char* folder : {"base", "target", "sync", "schedule", "ep", "transport", "runtime"})
    EXPECT_TRUE(folders_seen.contains(folder)) << "no header of " << folder << "/ under " << root;
}

TEST(Layers, TheCheckAcceptsWhatTheRuleAllows) {
  EXPECT_EQ(faults_of("f", "ep",
                      "#include <vector>\n"
                      "#include <cuda_runtime.h>\n"
                      "#include \"switchyard/ep/shape.hpp\"\n"
                      "#include \"switchyard/base/status.hpp\"\n"
                      "// asm, and \"switchyard/runtime/world.hpp\": only spoken of\n"
                      "/* asm\n asm */ int plasma, asm_count;\n"),
            std::vector<std::string>{});
  EXPECT_EQ(faults_of("f", "target", "asm volatile(\"bar.sync 0;\");\n"), std::vector<std::string>{});
}

TEST(Layers, TheCheckFindsEachKindOfFaultInItsLine) {
  const auto first_fault = [](const char* folder, const std::string& line) {
    const std::vector<std::string> faults = faults_of("f", folder, "/* one\n   two */\n" + line + "\n");
    return faults.size() == 1 ? faults.front() : std::to_string(faults.size()) + " faults";
  };
  EXPECT_EQ(first_fault("sync", "#include \"switchyard/ep/shape.hpp\""),
            "f:3: of layer 2 includes switchyard/ep/shape.hpp of layer 3");
  EXPECT_EQ(first_fault("schedule", "#include \"switchyard/target/target.hpp\""),
            "f:3: of schedule/ includes switchyard/target/target.hpp, but runs without a target");
  EXPECT_EQ(first_fault("ep", "#  include <switchyard/gemm/silu_mul.hpp>  // why"),
            "f:3: of layer 3 includes switchyard/gemm/silu_mul.hpp of layer 3");
  EXPECT_EQ(first_fault("ep", "#include \"switchyard/other/a.hpp\""),
            "f:3: includes switchyard/other/a.hpp of an unknown folder");
  EXPECT_EQ(first_fault("ep", "#include \"shape.hpp\""),
            "f:3: includes shape.hpp, which is not named from switchyard/ on");
  EXPECT_EQ(first_fault("ep", "  asm volatile(\"nop;\");"), "f:3: assembly outside target/");
  EXPECT_EQ(first_fault("sync", "__asm__(\"nop\");"), "f:3: assembly outside target/");
  for (const char* header : {"torch/extension.h", "ATen/ATen.h", "c10/util/Half.h", "mpi.h", "shmem.h",
                             "nvshmem.h", "nvshmemx.h", "nvshmem/nvshmem.h", "nvshmem_host.h"})
    EXPECT_EQ(first_fault("runtime", std::string("#include <") + header + ">"),
              std::string("f:3: needs ") + header);
}

}  // namespace
}  // namespace switchyard
