// docs/memory-model.md and the code, held together: every pair of a release and an acquire has a tag, a row
// in the document and its two sides in the code, every row that crosses blocks is weakened by a mutant, no
// release of a kernel's room stands without a tag, and no proxy fence without a mutant. docs/transports.md
// says for every pair between ranks how each transport keeps its order.
#include <gtest/gtest.h>

#include <algorithm>
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

using Texts = std::map<std::string, std::string>;  // of files, by their names from the project's folder on

std::vector<std::string> tags_in(const std::string& text, const std::regex& tag) {
  std::vector<std::string> tags;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), tag); match != std::sregex_iterator();
       ++match)
    tags.push_back("MM-" + (*match)[1].str());
  return tags;
}

// The rows of the document's tables. Only the first table has a column for the scope: its rows order blocks
// and ranks. Those that order ranks are of scope system, or have a word of the wire; the tags that they name
// are of pairs which collect what they publish.
struct Tables {
  std::set<std::string> tags;
  std::set<std::string> between_blocks;
  std::set<std::string> between_ranks;
  std::vector<std::string> faults;
};
Tables tables_of(const std::string& document) {
  static const std::regex kRow(R"(^\| MM-(\d\d) \|.*)"), kHeader(R"(^\| tag \|.*)"), kTag(R"(\bMM-(\d\d)\b)");
  Tables tables;
  bool has_scope = false;
  std::istringstream lines(document);
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, kHeader)) has_scope = line.find("| scope |") != std::string::npos;
    std::smatch row;
    if (!std::regex_match(line, row, kRow)) continue;
    const std::string tag = "MM-" + row[1].str();
    if (!tables.tags.insert(tag).second) tables.faults.push_back(tag + " has two rows");
    if (!has_scope) continue;
    tables.between_blocks.insert(tag);
    if (line.find("| system |") == std::string::npos && line.find("`wire_") == std::string::npos) continue;
    for (const std::string& named : tags_in(line, kTag)) tables.between_ranks.insert(named);
  }
  return tables;
}

// What is wrong with the table by which a page about transports says how they keep the document's order.
std::vector<std::string> order_faults_of(const std::string& document, const std::string& page) {
  static const std::regex kTag(R"(\bMM-(\d\d)\b)");
  const Tables pairs = tables_of(document), orders = tables_of(page);
  std::vector<std::string> faults = orders.faults;
  for (const std::string& tag : pairs.between_ranks)
    if (!orders.tags.contains(tag)) faults.push_back(tag + " orders ranks, but the page has no row of it");
  for (const std::string& tag : tags_in(page, kTag))
    if (!pairs.tags.contains(tag)) faults.push_back("the page names " + tag + ", which the document has not");
  return faults;
}

// Where the code names a side of a pair: `// release MM-01: ..`, `// acquire MM-01, MM-02: ..` or, for a word
// that is both, `// acq_rel MM-03: ..`.
struct Sides {
  std::set<std::string> released, acquired;
  std::vector<std::string> faults;
};
void add_sides_of(const std::string& file, const std::string& text, const Tables& tables, Sides& sides) {
  static const std::regex kTag(R"(\bMM-(\d\d)\b)");
  static const std::regex kSide(R"(//\s*(release|acquire|acq_rel)((?: MM-\d\d(?:, MM-\d\d)*)?):)");
  std::istringstream lines(text);
  std::string line;
  for (int line_number = 1; std::getline(lines, line); ++line_number) {
    const std::string location = file + ":" + std::to_string(line_number) + ": ";
    for (const std::string& tag : tags_in(line, kTag))
      if (!tables.tags.contains(tag)) sides.faults.push_back(location + tag + " has no row in the document");
    std::smatch side;
    if (!std::regex_search(line, side, kSide)) continue;
    const std::string kind = side[1].str();
    const std::vector<std::string> tags = tags_in(side[2].str(), kTag);
    if (tags.empty()) sides.faults.push_back(location + kind + " without a tag");
    for (const std::string& tag : tags) {
      if (kind != "acquire") sides.released.insert(tag);
      if (kind != "release") sides.acquired.insert(tag);
    }
  }
}

// Everything that is wrong. `mutants` is the test that weakens the rows; it writes MM01 for MM-01, since its
// tags are parts of names.
std::vector<std::string> faults_of(const std::string& document, const Texts& code,
                                   const std::string& mutants) {
  const Tables tables = tables_of(document);
  Sides sides{.faults = tables.faults};
  for (const auto& [file, text] : code) add_sides_of(file, text, tables, sides);
  for (const std::string& tag : tables.tags) {
    if (!sides.released.contains(tag)) sides.faults.push_back(tag + " has no release in the code");
    if (!sides.acquired.contains(tag)) sides.faults.push_back(tag + " has no acquire in the code");
  }
  static const std::regex kTagInName(R"(MM(\d\d))");
  const std::vector<std::string> named = tags_in(mutants, kTagInName);
  const std::set<std::string> weakened(named.begin(), named.end());
  for (const std::string& tag : weakened)
    if (!tables.between_blocks.contains(tag))
      sides.faults.push_back(tag + " is weakened, but is no row of the first table");
  for (const std::string& tag : tables.between_blocks)
    if (!weakened.contains(tag)) sides.faults.push_back(tag + " is weakened by no test");
  return sides.faults;
}

// Releases in code, not in comments. Each needs a comment of its own, `// release MM-01: ..` or
// `// acq_rel MM-03: ..`, that begins at most so many lines above it.
constexpr int kTagReach = 5;

// A line that may do without, and why.
struct UntaggedRelease {
  std::string file, line;
};
const std::vector<UntaggedRelease> kReleasesOfSignals = {
    // The bodies of PeerSignal::publish() and DeviceSignal::add(): who calls them has the tag.
    {"include/switchyard/detail/sync/signal.hpp", "target::st_release(scope, cell, value"},
    {"include/switchyard/detail/sync/signal.hpp", "target::atomic_add_release_device(counter, value"},
    // The body of publish(), by which kernels that may have a wire signal a peer.
    {"include/switchyard/detail/ep/reach.hpp", "PeerSignal{step.signal_scope, cell_in(of_peer)}.publish("},
};

// The releases of a file that have no tag; those that may do without are taken out of `allowed`.
std::vector<std::string> untagged_releases_of(const std::string& file, const std::string& text,
                                              std::vector<UntaggedRelease>& allowed) {
  static const std::regex kTagged(R"(//\s*(release|acq_rel) MM-\d\d)");
  static const std::regex kRelease(R"(\b\w+_(release|acq_rel)(?:_\w+)?\(|(?:\.|->|\})(?:publish|add)\()");
  std::vector<std::string> faults;
  std::string tagged_as;  // by the last comment that no release has used
  int tag_line = 0;
  std::istringstream lines(text);
  std::string line;
  for (int line_number = 1; std::getline(lines, line); ++line_number) {
    std::smatch comment, release;
    if (std::regex_search(line, comment, kTagged)) {
      tagged_as = comment[1].str();
      tag_line = line_number;
    }
    const std::string code = line.substr(0, line.find("//"));
    if (!std::regex_search(code, release, kRelease)) continue;
    const auto exception = std::find_if(allowed.begin(), allowed.end(), [&](const UntaggedRelease& entry) {
      return entry.file == file && code.find(entry.line) != std::string::npos;
    });
    if (exception != allowed.end()) {
      allowed.erase(exception);
      continue;
    }
    const std::string kind = release[1].matched ? release[1].str() : "release";
    if (tagged_as != kind || line_number - tag_line > kTagReach)
      faults.push_back(file + ":" + std::to_string(line_number) + ": no // " + kind + " MM-.. above " +
                       code.substr(code.find_first_not_of(' ')));
    tagged_as.clear();
  }
  return faults;
}

// An arrival at a barrier of a tile kernel releases to other threads of its block. One comment may stand for
// all arrivals of a function, at most so many lines above them.
constexpr int kArrivalReach = 20;

std::vector<std::string> untagged_arrivals_of(const std::string& file, const std::string& text) {
  static const std::regex kTagged(R"(//\s*release MM-\d\d)"), kArrival(R"((?:\.|->)arrive(?:_\w+)?\()");
  std::vector<std::string> faults;
  int tag_line = -kArrivalReach;
  std::istringstream lines(text);
  std::string line;
  for (int line_number = 1; std::getline(lines, line); ++line_number) {
    if (std::regex_search(line, kTagged)) tag_line = line_number;
    const std::string code = line.substr(0, line.find("//"));
    if (std::regex_search(code, kArrival) && line_number - tag_line > kArrivalReach)
      faults.push_back(file + ":" + std::to_string(line_number) + ": no // release MM-.. above " +
                       code.substr(code.find_first_not_of(' ')));
  }
  return faults;
}

// The function of each proxy fence of a file, as a class and a name: "RowSum<>::run_whole(".
std::vector<std::string> fenced_functions_of(const std::string& text) {
  static const std::regex kClass(R"(^(?:struct|class) (\w+).*[^;]$)");
  static const std::regex kFunction(R"(^ +SWITCHYARD_DEVICE [^=;]*?(\w+)\()");
  static const std::regex kFence(R"(\bfence_proxy_async(?:_shared)?\()");
  std::vector<std::string> functions;
  std::string class_name, function;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, kClass)) class_name = match[1].str();
    if (std::regex_search(line, match, kFunction)) function = match[1].str();
    if (std::regex_search(line.substr(0, line.find("//")), kFence))
      functions.push_back(class_name + "<>::" + function + "(");
  }
  return functions;
}

// Fences that no mutant takes away, or only together with another one of their function.
std::vector<std::string> unmutated_fences_of(const std::string& file, const std::string& text,
                                             const std::string& mutants) {
  static const std::regex kMutant(R"re("(\w+)\*(::\w+\()",\s+WordKind::kProxyFence)re");
  const auto is_taken_away = [&](const std::string& function) {
    for (auto mutant = std::sregex_iterator(mutants.begin(), mutants.end(), kMutant);
         mutant != std::sregex_iterator(); ++mutant) {
      const size_t at = function.find((*mutant)[1].str());  // as an OrderMutant finds its functions
      if (at != std::string::npos && function.find((*mutant)[2].str(), at) != std::string::npos) return true;
    }
    return false;
  };
  std::vector<std::string> faults;
  std::set<std::string> seen;
  for (const std::string& function : fenced_functions_of(text)) {
    if (!seen.insert(function).second) faults.push_back(file + ": " + function + "..) has two proxy fences");
    if (!is_taken_away(function))
      faults.push_back(file + ": no mutant is without the proxy fence of " + function + "..)");
  }
  return faults;
}

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// Of all tests that have order mutants.
std::string mutants_of(const std::filesystem::path& root) {
  return text_of(root / "tests/emulator/weak_protocol_test.cpp") +
         text_of(root / "tests/emulator/weak_matmul_test.cpp") +
         text_of(root / "tests/ep/wire_mutant_test.cpp") +
         text_of(root / "tests/runtime/early_gate_up_test.cpp") +
         text_of(root / "tests/runtime/early_combine_test.cpp");
}

TEST(MemoryModel, TheDocumentAndTheCodeNameTheSamePairs) {
  const std::filesystem::path root = SWITCHYARD_SOURCE_DIR;
  Texts code;
  for (const char* folder : {"include", "src"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder))
      if (entry.is_regular_file())
        code[entry.path().lexically_relative(root).string()] = text_of(entry.path());
  const std::string document = text_of(root / "docs/memory-model.md");
  EXPECT_GE(tables_of(document).tags.size(), 25u);
  EXPECT_GE(tables_of(document).between_blocks.size(), 15u);
  for (const std::string& fault : faults_of(document, code, mutants_of(root))) ADD_FAILURE() << fault;
}

TEST(MemoryModel, EveryPairBetweenRanksHasItsOrderOnEachTransport) {
  const std::filesystem::path root = SWITCHYARD_SOURCE_DIR;
  const std::string document = text_of(root / "docs/memory-model.md");
  const std::set<std::string> between_ranks = tables_of(document).between_ranks;
  for (const char* tag : {"MM-01", "MM-02", "MM-14", "MM-28", "MM-29"})
    EXPECT_TRUE(between_ranks.contains(tag)) << tag;
  EXPECT_FALSE(between_ranks.contains("MM-03"));
  EXPECT_GE(between_ranks.size(), 13u);
  for (const std::string& fault : order_faults_of(document, text_of(root / "docs/transports.md")))
    ADD_FAILURE() << fault;
}

TEST(MemoryModel, NoProxyFenceIsWithoutAMutant) {
  const std::filesystem::path root = SWITCHYARD_SOURCE_DIR;
  const std::string mutants = mutants_of(root);
  size_t num_fences = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "include")) {
    const std::string file = entry.path().lexically_relative(root).string();
    if (!entry.is_regular_file() || file.starts_with("include/switchyard/detail/target/")) continue;
    const std::string text = text_of(entry.path());
    num_fences += fenced_functions_of(text).size();
    for (const std::string& fault : unmutated_fences_of(file, text, mutants)) ADD_FAILURE() << fault;
  }
  EXPECT_GE(num_fences, 14u);
}

TEST(MemoryModel, TheCheckFindsAFenceWithoutAMutant) {
  const std::string code =
      "struct Other;\n"
      "struct FarRows {\n"
      "  SWITCHYARD_DEVICE void put(int row,\n"
      "                             int k) const {\n"
      "    target::fence_proxy_async_shared();  // not fence_proxy_async()\n";
  const std::string mutant = "{\"A\", {\"Rows*::put(\",\n  WordKind::kProxyFence}}";
  using Faults = std::vector<std::string>;
  EXPECT_EQ(unmutated_fences_of("a.hpp", code, mutant), Faults());
  EXPECT_EQ(unmutated_fences_of("a.hpp", code, "{\"B\", {\"Rows*::put(\", WordKind::kBulkWait}}"),
            Faults{"a.hpp: no mutant is without the proxy fence of FarRows<>::put(..)"});
  EXPECT_EQ(unmutated_fences_of("a.hpp", code + "target::fence_proxy_async();\n", mutant),
            Faults{"a.hpp: FarRows<>::put(..) has two proxy fences"});
  EXPECT_EQ(
      unmutated_fences_of(
          "a.hpp", code + "  SWITCHYARD_DEVICE void get() {\n    target::fence_proxy_async();\n", mutant),
      Faults{"a.hpp: no mutant is without the proxy fence of FarRows<>::get(..)"});
}

TEST(MemoryModel, NoReleaseIsWithoutATag) {
  const std::filesystem::path root = SWITCHYARD_SOURCE_DIR;
  std::vector<UntaggedRelease> allowed = kReleasesOfSignals;
  for (const char* room : {"attention", "ep", "format", "gemm", "launch", "sync"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(root / "include/switchyard/detail" / room))
      if (entry.is_regular_file())
        for (const std::string& fault : untagged_releases_of(entry.path().lexically_relative(root).string(),
                                                             text_of(entry.path()), allowed))
          ADD_FAILURE() << fault;
  for (const UntaggedRelease& entry : allowed) ADD_FAILURE() << entry.file << " has no line " << entry.line;
}

TEST(MemoryModel, NoArrivalOfATileKernelIsWithoutATag) {
  const std::filesystem::path root = SWITCHYARD_SOURCE_DIR;
  for (const char* room : {"attention", "gemm"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(root / "include/switchyard/detail" / room))
      if (entry.is_regular_file())
        for (const std::string& fault :
             untagged_arrivals_of(entry.path().lexically_relative(root).string(), text_of(entry.path())))
          ADD_FAILURE() << fault;
}

TEST(MemoryModel, TheCheckFindsAnArrivalWithoutATag) {
  const std::string tag = "  // release MM-20: a stage\n", arrival = "  full.arrive_expect(bytes);\n";
  using Faults = std::vector<std::string>;
  EXPECT_EQ(untagged_arrivals_of("a.hpp", tag + arrival + arrival), Faults());
  EXPECT_EQ(untagged_arrivals_of("a.hpp", "\n" + arrival),
            Faults{"a.hpp:2: no // release MM-.. above full.arrive_expect(bytes);"});
  EXPECT_EQ(untagged_arrivals_of("a.hpp", "// acquire MM-20: a stage\nempty->arrive();\n"),
            Faults{"a.hpp:2: no // release MM-.. above empty->arrive();"});
  EXPECT_EQ(untagged_arrivals_of("a.hpp", tag + std::string(kArrivalReach, '\n') + arrival).size(), 1u);
  EXPECT_EQ(untagged_arrivals_of("a.hpp", "named_barrier_arrive(1, 256);\n// x.arrive()\n"), Faults());
}

TEST(MemoryModel, TheCheckFindsAReleaseWithoutATag) {
  const auto faults = [](const std::string& code, std::vector<UntaggedRelease> allowed = {}) {
    return untagged_releases_of("ep/a.hpp", code, allowed);
  };
  using Faults = std::vector<std::string>;
  const std::string tag = "  // release MM-01: rows;\n  // pairs with b()\n";
  const std::string publish = "  PeerSignal{scope, cell}\n      .publish(value);\n";
  EXPECT_EQ(faults(tag + publish), Faults());
  EXPECT_EQ(faults(publish), Faults{"ep/a.hpp:2: no // release MM-.. above .publish(value);"});
  // Each release needs a tag of its own, near it and of its kind.
  EXPECT_EQ(faults(tag + publish + publish),
            Faults{"ep/a.hpp:6: no // release MM-.. above .publish(value);"});
  EXPECT_EQ(faults(tag + "\n\n\n" + publish),
            Faults{"ep/a.hpp:7: no // release MM-.. above .publish(value);"});
  EXPECT_EQ(faults(tag + "target::atomic_add_acq_rel_device(p, 1);\n"),
            Faults{"ep/a.hpp:3: no // acq_rel MM-.. above target::atomic_add_acq_rel_device(p, 1);"});
  EXPECT_EQ(faults("// acquire MM-01: rows\nDeviceSignal{p}.add(1);\n"),
            Faults{"ep/a.hpp:2: no // release MM-.. above DeviceSignal{p}.add(1);"});
  for (const char* release : {"st_release(scope, p, v);", "st_release_system(p, v);",
                              "atomic_add_release_device(p, 1);", "signal->publish(1);"})
    EXPECT_EQ(faults(release), Faults{std::string("ep/a.hpp:1: no // release MM-.. above ") + release});
  EXPECT_EQ(
      faults("void publish(uint64_t value);\n// p.publish(1)\nformat.publish_expert(1);\nRows::add(1);"),
      Faults());
  EXPECT_EQ(faults("st_release(p);\n", {{"ep/a.hpp", "st_release(p)"}}), Faults());
  EXPECT_EQ(faults("st_release(p);\n", {{"ep/b.hpp", "st_release(p)"}}).size(), 1u);
}

const std::string kDocument =
    "MM-77 is only spoken of.\n"
    "| tag | release | scope | publishes | acquire |\n"
    "|---|---|---|---|---|\n"
    "| MM-01 | a() | device | what MM-02 needs | b() |\n"
    "| MM-02 | c() | device | rows | the same add |\n"
    "\n"
    "| tag | release | publishes | acquire |\n"
    "|---|---|---|---|\n"
    "| MM-03 | d() | a tile | e() |\n";
const std::string kCode =
    "  // release MM-01, MM-03: rows; pairs with b()\n"
    "  st_release(cell);\n"
    "  // acquire MM-01: rows\n"
    "  // acq_rel MM-02: as MM-01, by the last block\n"
    "  // acquire MM-03: a tile\n"
    "  // releases nothing, and acquired: nothing\n";
const std::string kMutants = "{\"MM01IsRelaxed\"}, {\"MM02DoesNotAcquire\"}";

TEST(MemoryModel, TheCheckAcceptsWhatIsComplete) {
  EXPECT_EQ(faults_of(kDocument, {{"src/a.cpp", kCode}}, kMutants), std::vector<std::string>());
}

TEST(MemoryModel, TheCheckFindsAPairWithoutItsOrderOnTransports) {
  const std::string document =
      "| tag | release | scope | publishes | acquire |\n"
      "| MM-01 | a() | device | a block's rows | b() |\n"
      "| MM-02 | c() | system | everything acquired through MM-01 | d() |\n"
      "| MM-03 | e() | device | who is last | the same add |\n"
      "| MM-04 | f() after a `wire_settle` | device | puts | the same add |\n"
      "| tag | release | decides | acquire |\n"
      "| MM-05 | g() | who is first | the same add |\n";
  const std::string page = "| MM-01 | x |\n| MM-02 | x |\n| MM-04 | x |\n";
  using Faults = std::vector<std::string>;
  EXPECT_EQ(order_faults_of(document, page), Faults());
  EXPECT_EQ(order_faults_of(document, page + "| MM-03 | x |\n| MM-05 | x |\n"), Faults());
  EXPECT_EQ(order_faults_of(document, "| MM-01, MM-02 | x |\nMM-04\n"),
            (Faults{"MM-01 orders ranks, but the page has no row of it",
                    "MM-02 orders ranks, but the page has no row of it",
                    "MM-04 orders ranks, but the page has no row of it"}));
  EXPECT_EQ(order_faults_of(document, page + "| MM-02 | again |\n"), Faults{"MM-02 has two rows"});
  EXPECT_EQ(order_faults_of(document, page + "as MM-06\n"),
            Faults{"the page names MM-06, which the document has not"});
}

TEST(MemoryModel, TheCheckFindsEachKindOfFault) {
  const auto with = [](const std::string& text, const std::string& from, const std::string& to) {
    const size_t begin = text.find(from);
    EXPECT_NE(begin, std::string::npos) << from;
    return std::string(text).replace(begin, from.size(), to);
  };
  const auto faults = [](const std::string& document, const std::string& code, const std::string& mutants) {
    return faults_of(document, {{"src/a.cpp", code}}, mutants);
  };
  using Faults = std::vector<std::string>;
  EXPECT_EQ(faults(kDocument, kCode + "// acquire: rows\n", kMutants),
            Faults{"src/a.cpp:7: acquire without a tag"});
  EXPECT_EQ(faults(kDocument, kCode + "//acq_rel: rows\n", kMutants),
            Faults{"src/a.cpp:7: acq_rel without a tag"});
  EXPECT_EQ(faults(kDocument, kCode + "// as MM-09\n", kMutants),
            Faults{"src/a.cpp:7: MM-09 has no row in the document"});
  EXPECT_EQ(faults(kDocument, with(kCode, "release MM-01, MM-03", "release MM-01"), kMutants),
            Faults{"MM-03 has no release in the code"});
  EXPECT_EQ(faults(kDocument, with(kCode, "// acquire MM-01", "// MM-01"), kMutants),
            Faults{"MM-01 has no acquire in the code"});
  EXPECT_EQ(faults(kDocument, with(kCode, "acq_rel MM-02", "release MM-02"), kMutants),
            Faults{"MM-02 has no acquire in the code"});
  EXPECT_EQ(faults(kDocument + "| MM-01 | again | | |\n", kCode, kMutants), Faults{"MM-01 has two rows"});
  EXPECT_EQ(faults(kDocument + "| MM-04 | f() | | |\n", kCode, kMutants),
            (Faults{"MM-04 has no release in the code", "MM-04 has no acquire in the code"}));
  EXPECT_EQ(faults(kDocument, kCode, with(kMutants, "MM02", "MM01")), Faults{"MM-02 is weakened by no test"});
  EXPECT_EQ(faults(kDocument, kCode, kMutants + "MM03"),
            Faults{"MM-03 is weakened, but is no row of the first table"});
}

}  // namespace
}  // namespace switchyard
