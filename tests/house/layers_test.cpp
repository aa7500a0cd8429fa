// The architecture as a test: a room includes itself and rooms of lower layers only, its CMake target links
// those of lower layers only, assembly stays in target/, and no header of Torch, MPI or SHMEM is needed to
// build the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace switchyard {
namespace {

// docs: architecture, "Layers".
const std::map<std::string, int> kLayerOfRoom = {
    {"base", 0},        {"target", 1},  {"testing", 2},   {"emulator", 3}, {"format", 3},    {"sync", 3},
    {"schedule", 3},    {"device", 4},  {"ep", 4},        {"gemm", 4},     {"attention", 4}, {"launch", 5},
    {"transport", 5},   {"runtime", 6}, {"reference", 7}, {"c_api", 7},    {"files", 8},     {"workload", 9},
    {"benchmarks", 10}, {"report", 11}, {"commands", 12}, {"python", 13},  {"tests", 13}};

// The public headers, named from include/switchyard/ on, and the room that each belongs to. Those in types/
// come with the others.
const std::map<std::string, std::string> kRoomOfPublicHeader = {{"attention.hpp", "runtime"},
                                                                {"expert_parallel.hpp", "runtime"},
                                                                {"grouped_matmul.hpp", "runtime"},
                                                                {"moe_layer.hpp", "runtime"},
                                                                {"own_attention_kernels.hpp", "runtime"},
                                                                {"own_kernels.hpp", "launch"},
                                                                {"row_completion.hpp", "ep"},
                                                                {"row_readiness.hpp", "ep"},
                                                                {"status.hpp", "base"},
                                                                {"switchyard.h", "c_api"},
                                                                {"token_format.hpp", "format"},
                                                                {"version.hpp", "base"},
                                                                {"world.hpp", "runtime"},
                                                                {"types/attention_kind.hpp", "attention"},
                                                                {"types/bf16.hpp", "base"},
                                                                {"types/checked_size.hpp", "base"},
                                                                {"types/combine_epilogue.hpp", "ep"},
                                                                {"types/expert_parallel.hpp", "ep"},
                                                                {"types/expert_placement.hpp", "runtime"},
                                                                {"types/fault.hpp", "sync"},
                                                                {"types/matmul_epilogue.hpp", "gemm"},
                                                                {"types/matmul_tuning.hpp", "gemm"},
                                                                {"types/memory_functions.hpp", "device"},
                                                                {"types/target.hpp", "target"},
                                                                {"types/tile_scheduler.hpp", "schedule"},
                                                                {"types/tile_summary.hpp", "schedule"},
                                                                {"types/tile_types.hpp", "schedule"},
                                                                {"types/token_format_concepts.hpp", "format"},
                                                                {"types/trace.hpp", "sync"}};

// The folder of public headers that nobody has to include, since each comes with a contract.
constexpr const char* kTypes = "types";

// Rooms that are given what they need of a target, so that they run anywhere.
const std::set<std::string> kRoomsWithoutTarget = {"schedule"};

// The room of a file, named from the project's folder on; empty: it is in none.
std::string room_of(const std::string& file) {
  std::vector<std::string> parts;
  for (const auto& part : std::filesystem::path(file)) parts.push_back(part.string());
  const auto part = [&](size_t i) { return i < parts.size() ? parts[i] : std::string(); };
  if (part(0) == "include" && part(2) == "detail") return part(3);
  if (part(0) == "include") {
    const auto header = kRoomOfPublicHeader.find(part(2) == kTypes ? part(2) + "/" + part(3) : part(2));
    return header == kRoomOfPublicHeader.end() ? "" : header->second;
  }
  if (part(0) == "src") return part(1);
  if (part(0) == "tools") return parts.size() == 2 ? "commands" : part(1);
  if (part(0) == "examples") return "tests";
  return part(0);
}

// Without comments, each line in its place. Literals are left alone: no file holds one that looks like a
// comment and an include or assembly behind it.
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

using Files = std::set<std::string>;  // of the project, named from its folder on

// The file that a quoted include means: beside the one that includes it, or below a folder of headers.
std::string included_file(const std::string& file, const std::string& header, const Files& files) {
  const std::string beside = (std::filesystem::path(file).parent_path() / header).lexically_normal().string();
  if (files.contains(beside)) return beside;
  for (const char* folder : {"include/", "", "src/", "tools/", "tests/", "emulator/"})
    if (files.contains(folder + header)) return folder + header;
  return "";
}

// What is wrong with including `header`; empty if nothing is.
std::string fault_of_include(const std::string& file, const std::string& header, const Files& files) {
  const std::string included = included_file(file, header, files);
  if (included.empty() && is_foreign(header)) return "needs " + header;
  if (included.empty()) return "includes " + header + ", which is not there";
  const std::string room = room_of(file), included_room = room_of(included);
  if (!kLayerOfRoom.contains(included_room)) return "includes " + header + ", which is in no room";
  if (included_room == "target" && kRoomsWithoutTarget.contains(room))
    return "of " + room + " includes " + header + ", but runs without a target";
  const int layer = kLayerOfRoom.at(room), included_layer = kLayerOfRoom.at(included_room);
  if (included_room == room || included_layer < layer) return "";
  return "of layer " + std::to_string(layer) + " includes " + header + " of layer " +
         std::to_string(included_layer);
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

// Every fault of one file, as "file:line: what".
std::vector<std::string> faults_of(const std::string& file, const std::string& text, const Files& files) {
  std::vector<std::string> faults;
  const std::string room = room_of(file);
  if (!kLayerOfRoom.contains(room)) return {file + ":1: is in no room"};
  std::istringstream lines(without_comments(text));
  std::string line;
  for (int line_number = 1; std::getline(lines, line); ++line_number) {
    const std::string location = file + ":" + std::to_string(line_number) + ": ";
    const std::vector<std::string> tokens = tokens_of(line);
    if (tokens.size() > 2 && tokens[0] == "#" && tokens[1] == "include") {
      const size_t begin = line.find_first_of("<\"") + 1;
      const std::string header = line.substr(begin, line.find_first_of(">\"", begin) - begin);
      const bool is_ours = tokens[2] == "\"" || header.starts_with("switchyard/");
      const std::string fault = is_ours              ? fault_of_include(file, header, files)
                                : is_foreign(header) ? "needs " + header
                                                     : "";
      if (!fault.empty()) faults.push_back(location + fault);
    }
    if (room == "target" || room == "tests") continue;
    for (const char* assembly : {"asm", "__asm", "__asm__"})
      if (std::find(tokens.begin(), tokens.end(), assembly) != tokens.end())
        faults.push_back(location + "assembly outside target/");
  }
  return faults;
}

Files files_of_project() {
  const std::filesystem::path root = SWITCHYARD_SOURCE_DIR;
  Files files;
  for (const char* folder :
       {"include", "src", "emulator", "reference", "tools", "benchmarks", "python", "tests", "examples"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".h" || extension == ".hpp" || extension == ".cpp" || extension == ".cuh" ||
          extension == ".cu")
        files.insert(entry.path().lexically_relative(root).string());
    }
  return files;
}

TEST(Layers, FilesIncludeLowerLayersOnly) {
  const Files files = files_of_project();
  std::set<std::string> rooms_seen;
  for (const std::string& file : files) {
    rooms_seen.insert(room_of(file));
    std::ostringstream text;
    text << std::ifstream(std::filesystem::path(SWITCHYARD_SOURCE_DIR) / file).rdbuf();
    for (const std::string& fault : faults_of(file, text.str(), files)) ADD_FAILURE() << fault;
  }
  for (const auto& [room, layer] : kLayerOfRoom)
    EXPECT_TRUE(rooms_seen.contains(room)) << room << " is empty";
  for (const auto& [header, room] : kRoomOfPublicHeader)
    EXPECT_TRUE(files.contains("include/switchyard/" + header)) << header << " is not there";
}

// Adds the headers of the project that a file includes, directly or not.
void add_included(const std::string& file, const Files& files, Files& included) {
  std::ifstream lines(std::filesystem::path(SWITCHYARD_SOURCE_DIR) / file);
  const std::regex include("#include \"([^\"]*)\"");
  std::smatch match;
  for (std::string line; std::getline(lines, line);)
    if (std::regex_search(line, match, include))
      if (const std::string header = included_file(file, match[1], files); !header.empty())
        if (included.insert(header).second) add_included(header, files, included);
}

TEST(Layers, EveryHeaderOfTypesComesWithAContract) {
  const Files files = files_of_project();
  Files included;
  for (const auto& [header, room] : kRoomOfPublicHeader)
    if (!header.starts_with(kTypes)) add_included("include/switchyard/" + header, files, included);
  for (const auto& [header, room] : kRoomOfPublicHeader) {
    const bool is_contract = !header.starts_with(kTypes);
    EXPECT_TRUE(is_contract || included.contains("include/switchyard/" + header)) << header;
  }
}

TEST(Layers, TheArchitecturePageNamesEveryRoomAndPublicHeader) {
  std::ostringstream page;
  page << std::ifstream(std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "docs/architecture.md").rdbuf();
  for (const auto& [header, room] : kRoomOfPublicHeader)
    EXPECT_NE(page.str().find("`" + header + "`"), std::string::npos) << header;
  for (const auto& [room, layer] : kLayerOfRoom)
    EXPECT_NE(page.str().find(room + "/`"), std::string::npos) << room;
}

// The room that a CMake target is made of; empty: none.
std::string room_of_target(const std::string& target) {
  static const std::map<std::string, std::string> kOthers = {
      {"switchyard", "runtime"}, {"switchyard_limits", "benchmarks"}, {"switchyard_tool", "commands"}};
  if (const auto other = kOthers.find(target); other != kOthers.end()) return other->second;
  const std::string prefix = "switchyard_";
  const std::string room = target.starts_with(prefix) ? target.substr(prefix.size()) : "";
  return kLayerOfRoom.contains(room) ? room : "";
}

// Every link of a CMakeLists.txt that does not point down, as "room links room", and the rooms that it makes
// targets of.
std::vector<std::string> faults_of_links(const std::string& cmake, std::set<std::string>& rooms_seen) {
  std::vector<std::string> faults;
  const std::string code = std::regex_replace(cmake, std::regex("#[^\n]*"), "");
  const std::regex command("(switchyard_layer|target_link_libraries)\\(([^)]*)\\)");
  for (std::sregex_iterator found(code.begin(), code.end(), command), end; found != end; ++found) {
    std::istringstream words(std::regex_replace((*found)[2].str(), std::regex("\\$<[A-Z_]*:|>"), ""));
    std::string target, word;
    words >> target;
    const std::string room =
        room_of_target(((*found)[1] == "switchyard_layer" ? "switchyard_" : "") + target);
    if (room.empty()) continue;
    rooms_seen.insert(room);
    while (words >> word)
      if (const std::string linked = room_of_target(word); !linked.empty() && linked != room)
        if (kLayerOfRoom.at(linked) >= kLayerOfRoom.at(room)) faults.push_back(room + " links " + linked);
  }
  return faults;
}

TEST(Layers, TargetsLinkLowerLayersOnly) {
  std::set<std::string> rooms_seen;
  for (const char* folder : {"emulator", "src", "reference", "benchmarks", "tools", "python", "tests"}) {
    std::ostringstream text;
    text << std::ifstream(std::filesystem::path(SWITCHYARD_SOURCE_DIR) / folder / "CMakeLists.txt").rdbuf();
    for (const std::string& fault : faults_of_links(text.str(), rooms_seen))
      ADD_FAILURE() << folder << "/CMakeLists.txt: " << fault;
  }
  for (const auto& [room, layer] : kLayerOfRoom)
    EXPECT_TRUE(rooms_seen.contains(room)) << room << " has no CMake target";
}

TEST(Layers, TheCheckFindsLinksThatDoNotPointDown) {
  std::set<std::string> rooms;
  EXPECT_EQ(
      faults_of_links("switchyard_layer(sync SOURCES sync/fault.cpp\n  LINKS switchyard_target)\n"
                      "target_link_libraries(switchyard_reference PUBLIC switchyard  # switchyard_files\n"
                      "  PRIVATE switchyard_options Threads::Threads)\n",
                      rooms),
      std::vector<std::string>());
  EXPECT_EQ(rooms, (std::set<std::string>{"sync", "reference"}));
  EXPECT_EQ(faults_of_links("switchyard_layer(target LINKS switchyard_base switchyard_emulator)\n"
                            "target_link_libraries(switchyard_files PRIVATE $<LINK_ONLY:switchyard_report>)\n"
                            "switchyard_layer(ep LINKS switchyard_gemm)\n",
                            rooms),
            (std::vector<std::string>{"target links emulator", "files links report", "ep links gemm"}));
}

const Files kFiles = {"include/switchyard/status.hpp",          "include/switchyard/other.hpp",
                      "include/switchyard/world.hpp",           "include/switchyard/detail/target/target.hpp",
                      "include/switchyard/detail/ep/shape.hpp", "include/switchyard/detail/gemm/silu_mul.hpp",
                      "src/runtime/ep/ep_config.hpp",           "tools/workload/workload.hpp"};

TEST(Layers, TheCheckAcceptsWhatTheRuleAllows) {
  const std::vector<std::string> none;
  EXPECT_EQ(faults_of("include/switchyard/detail/ep/params.hpp",
                      "#include <vector>\n"
                      "#include <cuda_runtime.h>\n"
                      "#include \"switchyard/detail/ep/shape.hpp\"\n"
                      "#include \"switchyard/status.hpp\"\n"
                      "// asm, and \"switchyard/world.hpp\": only spoken of\n"
                      "/* asm\n asm */ int plasma, asm_count;\n",
                      kFiles),
            none);
  EXPECT_EQ(
      faults_of("include/switchyard/detail/target/cuda.cuh", "asm volatile(\"bar.sync 0;\");\n", kFiles),
      none);
  EXPECT_EQ(faults_of("src/runtime/ep/agreement.cpp",
                      "#include \"ep_config.hpp\"\n#include \"switchyard/world.hpp\"\n", kFiles),
            none);
  EXPECT_EQ(faults_of("benchmarks/ep_bench.hpp", "#include \"workload/workload.hpp\"\n", kFiles), none);
}

TEST(Layers, TheCheckFindsEachKindOfFaultInItsLine) {
  const auto first_fault = [](const std::string& file, const std::string& line) {
    const std::vector<std::string> faults = faults_of(file, "/* one\n   two */\n" + line + "\n", kFiles);
    if (faults.size() != 1 || !faults.front().starts_with(file))
      return std::to_string(faults.size()) + " faults";
    return faults.front().substr(file.size());
  };
  const std::string detail = "include/switchyard/detail/";
  EXPECT_EQ(first_fault(detail + "sync/wait.hpp", "#include \"switchyard/detail/ep/shape.hpp\""),
            ":3: of layer 3 includes switchyard/detail/ep/shape.hpp of layer 4");
  EXPECT_EQ(first_fault(detail + "ep/params.hpp", "#include <switchyard/world.hpp>"),
            ":3: of layer 4 includes switchyard/world.hpp of layer 6");
  EXPECT_EQ(first_fault(detail + "schedule/check.hpp", "#include \"switchyard/detail/target/target.hpp\""),
            ":3: of schedule includes switchyard/detail/target/target.hpp, but runs without a target");
  EXPECT_EQ(first_fault(detail + "ep/params.hpp", "#  include <switchyard/detail/gemm/silu_mul.hpp>  // why"),
            ":3: of layer 4 includes switchyard/detail/gemm/silu_mul.hpp of layer 4");
  EXPECT_EQ(first_fault("src/device/device.cpp", "#include \"runtime/ep/ep_config.hpp\""),
            ":3: of layer 4 includes runtime/ep/ep_config.hpp of layer 6");
  EXPECT_EQ(first_fault("reference/reference.cpp", "#include \"workload/workload.hpp\""),
            ":3: of layer 7 includes workload/workload.hpp of layer 9");
  EXPECT_EQ(first_fault(detail + "ep/params.hpp", "#include \"switchyard/other.hpp\""),
            ":3: includes switchyard/other.hpp, which is in no room");
  EXPECT_EQ(first_fault(detail + "ep/params.hpp", "#include \"switchyard/missing.hpp\""),
            ":3: includes switchyard/missing.hpp, which is not there");
  EXPECT_EQ(first_fault("include/switchyard/other.hpp", ""), ":1: is in no room");
  EXPECT_EQ(first_fault(detail + "ep/params.hpp", "  asm volatile(\"nop;\");"),
            ":3: assembly outside target/");
  EXPECT_EQ(first_fault("src/sync/fault.cpp", "__asm__(\"nop\");"), ":3: assembly outside target/");
  for (const char* header : {"torch/extension.h", "ATen/ATen.h", "c10/util/Half.h", "mpi.h", "shmem.h",
                             "nvshmem.h", "nvshmemx.h", "nvshmem/nvshmem.h", "nvshmem_host.h"})
    EXPECT_EQ(first_fault("include/switchyard/world.hpp", std::string("#include <") + header + ">"),
              std::string(":3: needs ") + header);
}

}  // namespace
}  // namespace switchyard
