// `switchyard plan` as a user meets it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_file;
using testing_support::read_json;

class CliPlan : public testing_support::CliTest {
 protected:
  std::string write(const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return folder / name;
  }
  // Every element is closed, in order: what a viewer of SVG needs.
  static void expect_well_formed(const std::string& svg) {
    EXPECT_EQ(svg.rfind("<svg", 0), 0u) << svg.substr(0, 40);
    std::vector<std::string> open;
    for (size_t begin = svg.find('<'); begin != std::string::npos; begin = svg.find('<', begin + 1)) {
      const size_t end = svg.find('>', begin);
      ASSERT_NE(end, std::string::npos);
      const std::string tag = svg.substr(begin + 1, end - begin - 1);
      ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
      ASSERT_EQ(tag.find("nan"), std::string::npos) << tag;
      if (tag.ends_with('/')) continue;
      if (!tag.starts_with('/')) {
        open.push_back(tag.substr(0, tag.find(' ')));
        continue;
      }
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ("/" + open.back(), tag);
      open.pop_back();
    }
    EXPECT_TRUE(open.empty());
  }
};

TEST_F(CliPlan, CountsTheBytesThatARunCounts) {
  const std::string routing =
      write("routing.csv", "0,0,3\n0,7,7\n1,-1,4\n1,6,5\n1,2,0\n3,1,0\n3,-1,-1\n3,4,5\n");
  for (const char* options : {"--protocol direct --format bf16", "--protocol slotted --format fp8",
                              "--protocol direct --format nvfp4 --combine-format fp8"}) {
    const std::string shape =
        " --ranks 4 --experts 8 --top-k 2 --hidden 128 --routing " + routing + " " + options;
    const json ran =
        read_json(run("run --target host --expert-width 16 --json - --p2p-world-size 2 --delivery sender" + shape).out);
    const json planned = read_json(run("plan --ranks-per-node 2 --json -" + shape).out);
    EXPECT_EQ(ran.at("verified"), true);
    ASSERT_EQ(planned.at("plans").size(), 1u);
    for (const char* phase : {"dispatch", "combine"})
      for (const char* bytes : {"bytes_to_other_ranks", "bytes_to_other_groups"})
        EXPECT_EQ(planned.at("plans")[0].at(phase).at(bytes), ran.at("traffic").at(phase).at(bytes))
            << options << " " << phase << " " << bytes;
  }
}

TEST_F(CliPlan, PredictsOverRanksAndSaysWhatBinds) {
  const std::string svg_path = folder / "plan.svg", json_path = folder / "plan.json";
  const Outcome outcome =
      run("plan --ranks 1,8..64 --tokens 64 --format fp8 --svg " + svg_path + " --json " + json_path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* part :
       {"64 tokens per rank, hidden 7168, top-8, 256 experts, uniform routing", "dispatch fp8 per expert",
        "NIC", "The model's constants:", "docs/performance.md", "release at system scope", "1.65 us"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
  const json report = read_json(read_file(json_path));
  std::vector<int> ranks;
  for (const json& plan : report.at("plans")) {
    ranks.push_back(plan.at("ranks"));
    for (const char* phase : {"dispatch", "combine"}) {
      const json& part = plan.at(phase);
      const double longest = std::max({part.at("memory_us").get<double>(), part.at("link_us").get<double>(),
                                       part.at("nic_us").get<double>()});
      EXPECT_NEAR(part.at("us").get<double>(), part.at("latency_us").get<double>() + longest, 1e-6);
    }
  }
  EXPECT_EQ(ranks, (std::vector<int>{1, 8, 16, 32, 64}));
  EXPECT_EQ(report.at("plans")[4].at("dispatch").at("bound"), "NIC");
  EXPECT_EQ(report.at("calibration").size(), 14u);
  expect_well_formed(read_file(svg_path));
  const Outcome alone = run("plan --ranks 8 --tokens 0 --svg -");
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  expect_well_formed(alone.out);
}

TEST_F(CliPlan, SaysWhichStepTheLibraryHasNoMemoryFor) {
  const Outcome large =
      run("plan --ranks 2 --tokens 65535 --top-k 32 --hidden 16384 --routing one-expert --protocol direct");
  EXPECT_EQ(large.exit_code, 0) << large.err;
  for (const char* part : {"no arena: max_tokens_per_rank 65535, top_k 32", "must be below 68719476736"})
    EXPECT_NE(large.out.find(part), std::string::npos) << part << " in " << large.out;
}

TEST_F(CliPlan, HelpNamesEveryOption) {
  const Outcome help = run("plan --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* option : {"--ranks",
                             "--ranks-per-node",
                             "--link",
                             "--nic",
                             "--latency",
                             "--nic-latency",
                             "--tokens",
                             "--hidden",
                             "--experts",
                             "--top-k",
                             "--protocol",
                             "--format",
                             "--combine-format",
                             "--layout",
                             "--message",
                             "--combine-message",
                             "--routing",
                             "--counts",
                             "--placement",
                             "--replicas",
                             "--experts-per-rank",
                             "--write-placement",
                             "--published",
                             "--seed",
                             "--svg",
                             "--json"})
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  EXPECT_NE(run("--help").out.find("switchyard plan"), std::string::npos);
}

TEST_F(CliPlan, OneMessagePerRankCrossesTheLinkLessOften) {
  const auto link_bytes = [&](const std::string& message) {
    const json report = read_json(run("plan --ranks 8 --tokens 512 --json - " + message).out);
    return report.at("plans")[0].at("dispatch").at("bytes_to_other_ranks")[0].get<double>();
  };
  EXPECT_NEAR(link_bytes("--message expert") / link_bytes("--message rank"), 1.5, 0.05);
}

TEST_F(CliPlan, WritesAPlacementThatItReads) {
  const std::string placement = folder / "placement.csv", svg_path = folder / "placement.svg";
  const std::string counts =
      write("counts.json", "{\"tokens_per_expert\": [900, 10, 10, 10, 300, 10, 10, 10]}");
  const Outcome outcome = run("plan --ranks 4 --top-k 2 --tokens 32 --replicas 2 --counts " + counts +
                              " --write-placement " + placement + " --svg " + svg_path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"rank 0", "largest / mean load", "dispatch, link MB", "step us"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
  expect_well_formed(read_file(svg_path));
  const std::string text = read_file(placement);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  const Outcome again = run("plan --ranks 4 --top-k 2 --tokens 32 --counts " + counts + " --placement " +
                            placement + " --json -");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  const Outcome report =
      run("plan --ranks 4 --top-k 2 --tokens 32 --replicas 2 --counts " + counts + " --json -");
  const json planned = read_json(report.out);
  EXPECT_LT(planned.at("after").at("largest_load"), planned.at("before").at("largest_load"));
  EXPECT_EQ(planned.at("after").at("plan").at("rows_of_rank"),
            read_json(again.out).at("plans")[0].at("rows_of_rank"));
  const Outcome alone =
      run("plan --ranks 4 --top-k 2 --tokens 32 --replicas 2 --write-placement - --counts " + counts);
  EXPECT_EQ(alone.out, text);
}

TEST_F(CliPlan, ShowsWhatWasPublishedBesideTheModel) {
  const Outcome outcome = run("plan --published");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"DeepEP V2", "UCCL-EP", "8 ranks on one H200, 4096 tokens", "(1) "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
}

TEST_F(CliPlan, BadArgumentsNameTheFlagAndItsLimit) {
  expect_refused("plan --ranks 513", {"--ranks: '513'", "1..512"});
  expect_refused("plan --ranks 0", {"--ranks: '0'"});
  expect_refused("plan --ranks 8..4", {"--ranks: '8..4'"});
  expect_refused("plan --ranks 8,,16", {"--ranks: '8,,16'"});
  expect_refused("plan --ranks ''", {"--ranks: ''"});
  expect_refused("plan --ranks-per-node 0", {"--ranks-per-node", "1..512"});
  expect_refused("plan --ranks-per-node 8 --ranks-per-device 3",
                 {"--ranks-per-device: 3 must divide", "(8)"});
  for (const char* flag : {"--link", "--nic"})
    for (const char* value : {"nan", "inf", "0", "-1", "1e7", "x"})
      expect_refused(std::string("plan ") + flag + " " + value, {flag, value, "0.001..1e+06"});
  expect_refused("plan --latency -1", {"--latency", "0..1e+06"});
  expect_refused("plan --nic-latency nan", {"--nic-latency"});
  expect_refused("plan --tokens 65536", {"--tokens", "65535"});
  expect_refused("plan --hidden 100", {"--hidden: 100 must be a multiple of 8"});
  expect_refused("plan --experts 1025", {"--experts", "1024"});
  expect_refused("plan --experts 4 --top-k 5", {"--top-k: 5 must be 1..4"});
  expect_refused("plan --layout per-rank", {"--layout", "--message", "expert"});
  expect_refused("plan --message host", {"--message", "expert, rank, node"});
  expect_refused("plan --ranks 8,16 --replicas 1", {"--ranks: 8,16 are 2 numbers", "--replicas"});
  expect_refused("plan --ranks 2 --experts 2 --top-k 1 --replicas 3", {"--replicas: 3 must be 0..2"});
  expect_refused("plan --ranks 2 --experts 8 --replicas 0 --experts-per-rank 3",
                 {"--experts-per-rank: 3", "4 or more"});
  expect_refused("plan --published --ranks 8", {"--published", "--ranks"});
  expect_refused("plan --published --svg -", {"--svg"});
  expect_refused("plan --json - --svg -", {"--svg", "stdout"});
  expect_refused("plan --svg /no/such/folder/a.svg", {"--svg", "/no/such/folder"});
}

TEST_F(CliPlan, BadFilesNameTheFileAndTheLine) {
  const std::string empty = write("empty", ""), bad = write("bad", "0,1\n9,2\n"),
                    counts = write("counts", "1,2,3");
  expect_refused("plan --ranks 4 --routing /no/such/file", {"--routing", "/no/such/file"});
  expect_refused("plan --ranks 4 --routing " + empty, {"--routing", empty, "no line with ids"});
  expect_refused("plan --ranks 4 --routing " + bad, {"--routing", "line 2", "rank 9 must be 0..3"});
  expect_refused("plan --ranks 4 --tokens 3 --routing " + bad, {"--tokens", "--routing"});
  expect_refused("plan --ranks 4,8 --routing " + bad, {"--ranks", "--routing"});
  expect_refused("plan --ranks 4 --counts " + empty, {"--counts", empty, "0 counts"});
  expect_refused("plan --ranks 4 --experts 4 --counts " + counts, {"--counts", "3 counts", "--experts 4"});
  expect_refused("plan --ranks 4 --placement " + empty, {"--placement", empty, "0 ranks"});
  expect_refused("plan --ranks 2 --experts 4 --top-k 2 --placement " + bad,
                 {"--placement", "line 2", "expert 9"});
}

TEST_F(CliPlan, LostOutputIsAFault) {
  const Outcome full = run("plan --ranks 8 --tokens 4", ">/dev/full");
  EXPECT_EQ(full.exit_code, 3);
  EXPECT_NE(full.err.find("cannot write stdout"), std::string::npos) << full.err;
  for (const char* output : {"--json -", "--svg -", "--replicas 0 --write-placement -"})
    EXPECT_EQ(run(std::string("plan --ranks 8 --tokens 4 ") + output, ">&-").exit_code, 3) << output;
}

}  // namespace
}  // namespace switchyard
