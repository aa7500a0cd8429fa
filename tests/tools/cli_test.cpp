// The `switchyard` command as a user meets it: exit codes, the line that names the flag, JSON.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli_fixture.hpp"
#include "switchyard/token_format.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_file;
using testing_support::read_json;

class Cli : public testing_support::CliTest {};

const std::string kSmall =
    "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 32 --expert-width 16 --tokens 5 ";

TEST_F(Cli, RunVerifiesAndPrintsATable) {
  const Outcome outcome = run(kSmall);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("verified"), std::string::npos);
  EXPECT_NE(outcome.out.find("dispatch_async"), std::string::npos);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Cli, FusedModePaddingZipfAndOneExpertVerify) {
  EXPECT_EQ(run(kSmall + "--mode fused").exit_code, 0);
  EXPECT_EQ(run(kSmall + "--padding 0.4 --steps 3").exit_code, 0);
  EXPECT_EQ(run(kSmall + "--padding 1").exit_code, 0);
  EXPECT_EQ(run(kSmall + "--routing zipf").exit_code, 0);
  EXPECT_EQ(run(kSmall + "--routing one-expert --mode fused").exit_code, 0);
  EXPECT_EQ(run(kSmall + "--n-sms 1").exit_code, 0);
}

TEST_F(Cli, PlacementsAndReplicasVerify) {
  const std::string path = folder / "placement.csv",
                    uneven =
                        "run --target host --ranks 3 --experts 5 --top-k 2 --hidden 32 --expert-width 16 "
                        "--tokens 5 --steps 1 ";
  std::ofstream(path) << "# of three ranks\n4,0\n\n1,2,3,0\n";
  for (const std::string protocol : {"--protocol slotted ", "--protocol direct "}) {
    EXPECT_EQ(run(uneven + protocol).exit_code, 0);
    EXPECT_EQ(run(uneven + protocol + "--replicas 3 --routing zipf").exit_code, 0);
    const Outcome placed = run(uneven + protocol + "--placement " + path);
    EXPECT_EQ(placed.exit_code, 0) << placed.err;
    EXPECT_NE(placed.out.find("placement at most 4 experts per rank, 1 replicas"), std::string::npos);
    EXPECT_NE(placed.out.find("memory "), std::string::npos);
  }
  std::ofstream(path) << "4,0\n1,2\n2\n";
  expect_refused(uneven + "--placement " + path, {"--placement", "expert 3 on no rank"});
}

const std::string kQuantised =
    "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 128 --expert-width 16 --tokens 5 --steps 1 ";

TEST_F(Cli, EveryFormatVerifiesInBothProtocols) {
  for (const std::string protocol : {"--protocol slotted ", "--protocol direct "})
    for (const TokenFormatKind format : kTokenFormatKinds) {
      const Outcome outcome = run(kQuantised + protocol + "--format " + to_string(format));
      EXPECT_EQ(outcome.exit_code, 0) << to_string(format) << outcome.err << outcome.out;
      const bool has_scales = outcome.out.find("rows, scales and output") != std::string::npos;
      EXPECT_EQ(has_scales, format != TokenFormatKind::kBF16) << to_string(format);
    }
}

TEST_F(Cli, SharedExpertsQuantisedCombinesAndAllReducesVerify) {
  for (const std::string protocol : {"--protocol slotted ", "--protocol direct "})
    for (const std::string mode : {"--mode split ", "--mode fused "}) {
      const std::string command = kQuantised + protocol + mode;
      EXPECT_EQ(run(command + "--shared-expert").exit_code, 0);
      EXPECT_EQ(run(command + "--skip-a2a --format nvfp4-by-expert").exit_code, 0);
      const Outcome outcome = run(command + "--shared-expert --skip-a2a --format fp8 --combine-format fp8");
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
      EXPECT_NE(outcome.out.find("combine in fp8   costs"), std::string::npos);
      // Both ranks read the other's 5 tokens of 128.
      EXPECT_NE(outcome.out.find("0.00 MB per step (partial sums that ranks read"), std::string::npos)
          << outcome.out;
    }
}

TEST_F(Cli, RanksWithoutRowsOrTokensVerifyInEveryFormat) {
  for (const TokenFormatKind format : kTokenFormatKinds)
    for (const char* protocol : {"slotted", "direct"})
      for (const char* combine_format : {"bf16", "fp8"}) {
        const Outcome outcome =
            run("run --target host --ranks 2 --experts 2 --top-k 1 --hidden 384 --expert-width 8 --routing "
                "one-expert "
                "--tokens-per-rank 0,2 --steps 1 --format " +
                std::string(to_string(format)) + " --protocol " + protocol + " --combine-format " +
                combine_format);
        EXPECT_EQ(outcome.exit_code, 0)
            << to_string(format) << ", " << protocol << ": " << outcome.err << outcome.out;
      }
  EXPECT_EQ(run(kQuantised + "--format nvfp4 --padding 1").exit_code, 0);
}

TEST_F(Cli, OddShapesVerify) {
  EXPECT_EQ(run("run --target host --ranks 3 --tokens-per-rank 5,0,7 --experts 6 --top-k 3 --hidden 72 "
                "--expert-width 8")
                .exit_code,
            0);
  EXPECT_EQ(run("run --target host --ranks 1 --tokens 0 --experts 1 --top-k 1 --hidden 8 --expert-width 8")
                .exit_code,
            0);
}

TEST_F(Cli, JsonAloneOnStdout) {
  const Outcome outcome = run(kSmall + "--json -");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.rfind("{\n  \"verified\": true,\n", 0), 0u) << "members stay in their order";
  EXPECT_EQ(outcome.out.substr(outcome.out.size() - 2), "}\n");
  const json report = read_json(outcome.out);
  EXPECT_EQ(report.at("verified"), true);
  EXPECT_LT(report.at("max_abs_error"), 1);
  EXPECT_EQ(report.at("rows_per_rank").size(), report.at("shape").at("ranks"));
  EXPECT_GT(report.at("bytes_moved"), 0);
  EXPECT_GT(report.at("phases").at("dispatch_wait"), 0);
  EXPECT_EQ(report.at("target"), "host");
  EXPECT_EQ(report.at("shape").at("hidden"), 32);
  EXPECT_EQ(run(kSmall + "--json " + (folder / "report.json").string()).exit_code, 0);
  EXPECT_EQ(read_file(folder / "report.json").front(), '{');
}

TEST_F(Cli, ARoutingFileSaysWhereTokensGo) {
  const std::string path = folder / "routing.csv";
  std::ofstream(path) << "# rank, ids\n0,3,3\n1,0,-1\n\n1,2,1\n";
  const Outcome outcome =
      run("run --target host --ranks 2 --experts 4 --hidden 16 --expert-width 8 --json - --routing " + path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = read_json(outcome.out);
  EXPECT_EQ(report.at("rows_per_rank"), json({2, 3}));
  EXPECT_EQ(report.at("shape").at("tokens_per_rank"), json({1, 2}));
  // A format that aligns each expert's rows has no more of them.
  for (const std::string format : {"fp8", "nvfp4"}) {
    const Outcome aligned =
        run("run --target host --ranks 2 --experts 4 --hidden 128 --expert-width 8 --json - --shared-expert "
            "--format " +
            format + " --routing " + path);
    EXPECT_EQ(read_json(aligned.out).at("rows_per_rank"), json({3, 5}));
  }
}

TEST_F(Cli, BadArgumentsNameTheFlagAndItsLimit) {
  expect_refused("run --ranks 0", {"--ranks", "1", "512"});
  expect_refused("run --ranks x", {"--ranks"});
  expect_refused("run --tokens -1", {"--tokens", "65535"});
  expect_refused("run --tokens 65536", {"--tokens", "65535"});
  expect_refused("run --hidden 20", {"--hidden", "multiple of 8"});
  expect_refused("run --hidden 16392", {"--hidden", "16384"});
  expect_refused("run --top-k 33", {"--top-k", "32"});
  expect_refused("run --experts 1025", {"--experts", "1024"});
  expect_refused("run --placement nowhere.csv", {"--placement", "nowhere.csv"});
  expect_refused("run --ranks 2 --experts 2 --top-k 1 --replicas 3", {"--replicas: 3 must be 0..2"});
  expect_refused("run --placement x.csv --replicas 1", {"--replicas: 1; it must be 0 with --placement"});
  expect_refused("run --experts 8 --top-k 9", {"--top-k", "--experts (8)"});
  expect_refused("run --tokens-per-rank 1,2 --ranks 3", {"--tokens-per-rank", "--ranks is 3"});
  expect_refused("run --tokens 3 --tokens-per-rank 1,2", {"--tokens"});
  for (const char* list : {"1,,2", "1,", ",1", "1,x", "1,65536", "-1,2", "1;2"})
    expect_refused(std::string("run --ranks 2 --tokens-per-rank '") + list + "'",
                   {"--tokens-per-rank", list, "0..65535"});
  for (const char* seed : {"-1", "1.5", "x", "18446744073709551616"})
    expect_refused(std::string("run --seed ") + seed, {"--seed", seed, "0..18446744073709551615"});
  expect_refused("run --expert-width 12", {"--expert-width", "multiple of 8"});
  expect_refused("run --padding 1.5", {"--padding", "1"});
  expect_refused("run --mode both", {"--mode", "split", "fused"});
  expect_refused("run --format int3", {"--format", "bf16"});
  expect_refused("run --format fp8 --hidden 192", {"--hidden", "fp8", "multiple of 128"});
  expect_refused("run --format mxfp6 --hidden 96", {"--hidden", "mxfp6", "multiple of 64"});
  expect_refused("run --combine-format fp8 --hidden 64", {"--hidden", "multiple of 128"});
  expect_refused("run --combine-format nvfp4", {"--combine-format", "fp8"});
  expect_refused("run --skip-a2a --ranks 2 --tokens-per-rank 1,2", {"--skip-a2a", "--tokens-per-rank"});
  expect_refused("run --target tpu", {"--target", "host"});
  expect_refused("run --steps 0", {"--steps"});
  expect_refused("run --routing nowhere.csv", {"--routing", "nowhere.csv"});
  expect_refused("run --padding nan", {"--padding"});
  expect_refused("run --json /no/such/folder/report.json", {"--json", "/no/such/folder"});
  expect_refused("run --trace /no/such/folder/trace.json", {"--trace", "/no/such/folder"});
  expect_refused("run --dump /proc/no/such/folder", {"--dump"});
  expect_refused("bogus", {"bogus: no such subcommand", "simulate"});
  expect_refused("run --no-such-flag 9", {"switchyard run: --no-such-flag: no such option"});
  expect_refused("", {"subcommand", "simulate"});
  expect_refused("--fast", {"--fast: no such option"});
  expect_refused("run --format int8", {"--format: 'int8' must be one of bf16, fp8"});
  expect_refused("run --format 3", {"--format: '3' must be one of"});
  expect_refused("run --layout per-rank --dump /tmp", {"--dump", "--layout per-rank"});
  expect_refused("run --capacity-factor nan", {"--capacity-factor", "0..512"});
  expect_refused("run --skip-a2a --capacity-factor 1", {"--capacity-factor: with --skip-a2a"});
  for (const char* number : {"0x10", "1e1", "+1", "1.0", "' 1'", "''", "1x"})
    expect_refused(std::string("run --tokens ") + number, {"--tokens", "whole number 0..65535"});
  expect_refused("schedule --tile-overhead nan", {"--tile-overhead", "nan", "0.."});
  expect_refused("schedule --tile-overhead inf", {"--tile-overhead", "inf", "0.."});
  expect_refused("attend --head-dim 0x40", {"--head-dim", "64, 128, 256"});
}

TEST_F(Cli, WhatTheLibraryRefusesIsSaidInFlags) {
  expect_refused("run --target host --hidden 16384 --tokens 65535 --ranks 64 --experts 1024 --top-k 32",
                 {"--tokens 65535, --top-k 32 and --capacity-factor 0 make", "--hidden 16384"});
  expect_refused("run --target host --n-sms 60000", {"--n-sms is 60000"});
  expect_refused("bench ep --target host --n-sms 60000 --tokens 1", {"--n-sms is 60000"});
}

TEST_F(Cli, NumbersAreDecimal) {
  const std::string shape =
      "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 32 --expert-width 16 ";
  const json alone = read_json(run(shape + "--tokens 010 --seed 011 --json -").out);
  EXPECT_EQ(alone.at("shape").at("tokens_per_rank"), json({10, 10}));
  EXPECT_EQ(alone.at("seed"), 11);
  const json in_list = read_json(run(shape + "--tokens-per-rank 010,08 --json -").out);
  EXPECT_EQ(in_list.at("shape").at("tokens_per_rank"), json({10, 8}));
}

TEST_F(Cli, TheVersionIsTheOneOfThePackage) {
  const Outcome outcome = run("--version");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "switchyard " SWITCHYARD_PACKAGE_VERSION "\n");
}

TEST_F(Cli, BadRoutingFilesNameTheLine) {
  const std::string path = folder / "routing.csv";
  const std::string command = "run --target host --ranks 2 --experts 4 --hidden 16 --routing " + path;
  const auto with = [&](const std::string& text) { std::ofstream(path, std::ios::trunc) << text; };
  with("0,1,2\n0,1\n");
  expect_refused(command, {"--routing", "line 2 has 1 id; it must have 2, as the lines before it"});
  expect_refused(command + " --top-k 3", {"line 1 has 2 ids; it must have 3, as --top-k says"});
  std::string ids;
  for (int i = 0; i < 33; ++i) ids += ",1";
  with("0" + ids + "\n");
  expect_refused(command, {"line 1 has 33 ids; it must have 1..32"});
  with("0\n");
  expect_refused(command, {"line 1 has 0 ids; it must have 1..32"});
  with("0,1,99999999999\n");
  expect_refused(command, {"line 1, column 5: the number does not fit 32 bits"});
  expect_refused("run --target host --routing " + folder.string(), {"--routing", "is a directory"});
  with("0,1,4\n");
  expect_refused(command, {"line 1", "id 4", "-1..3"});
  with("2,1,3\n");
  expect_refused(command, {"line 1", "rank 2", "0..1"});
  with("0,one\n");
  expect_refused(command, {"line 1", "whole number"});
  with("");
  expect_refused(command, {"no line with ids"});
  with("0,1\n");
  expect_refused(command + " --tokens 4", {"--tokens"});
}

const std::string kSmallBench =
    "bench ep --target host --ranks 2 --experts 4 --top-k 2 --hidden 64 --tokens 1,3 --replays 2 --n-sms 2 ";

TEST_F(Cli, BenchTimesEveryPhaseAndVerifies) {
  const std::string json_path = folder / "bench.json", svg_path = folder / "bench.svg";
  const Outcome table = run(kSmallBench + "--json " + json_path + " --svg " + svg_path);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(table.err, "");
  for (const char* part : {"step", "dispatch_async", "dispatch_wait", "combine_async", "combine_wait",
                           "dispatch ", "combine ", "scatter", "gather", "% of copy", "x limit", "verified"})
    EXPECT_NE(table.out.find(part), std::string::npos) << part << " in " << table.out;
  const std::string json = read_file(json_path), svg = read_file(svg_path);
  for (const char* part : {"\"verified\": true", "\"copy_bytes_per_second\": ", "\"tokens_per_rank\": 3",
                           "\"scatter_limit_us\": ", "\"gather_limit_us\": ", "\"over_limit\": ",
                           "\"phase\": \"step\"", "\"mode\": \"fused\"", "\"fraction_of_copy\": "})
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  for (const char* part : {"whole step", "limits", "scatter", "gather"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST_F(Cli, BenchOfRowsPerRankVerifiesAndHasNoLimits) {
  const Outcome outcome = run(kSmallBench + "--layout per-rank");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"per-rank, aligned to 1", "direct", "verified"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
  EXPECT_EQ(outcome.out.find("scatter"), std::string::npos) << outcome.out;
}

// There is room for the worst case by default.
TEST_F(Cli, BenchSendsEverythingToOneExpert) {
  for (const char* layout : {"ragged", "per-rank"}) {
    const Outcome outcome = run(kSmallBench + "--routing one-expert --layout " + layout);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("verified"), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find("skipped"), std::string::npos) << outcome.out;
  }
}

TEST_F(Cli, BenchRepeatsAndComparesHashes) {
  const Outcome outcome = run(kSmallBench + "--tokens 2 --routing zipf --repeat-check 5");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* mode : {"split", "fused"})
    EXPECT_NE(outcome.out.find(std::string(mode) + ": 5 replays, 10 outputs hashed, all equal"),
              std::string::npos)
        << outcome.out;
}

TEST_F(Cli, BenchSkipsWhatDoesNotFit) {
  const Outcome outcome =
      run("bench ep --target host --hidden 16384 --tokens 65535 --ranks 64 --experts 1024 --top-k 32");
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
  EXPECT_NE(outcome.err.find("every size was skipped, so nothing was run"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("65535  skipped: needs"), std::string::npos) << outcome.out;
}

TEST_F(Cli, BenchFormatsShowsWhatEachFormatLoses) {
  const Outcome outcome = run("bench formats --values 131072 --json -");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(run("bench formats --values 131072 --json -").out, outcome.out)
      << "the same seed gives the same numbers";
  EXPECT_NE(run("bench formats --values 131072 --seed 2 --json -").out, outcome.out);
  const json report = read_json(outcome.out);
  std::map<std::string, const json*> normal;
  for (const json& result : report.at("formats"))
    if (result.at("input") == "normal") normal[result.at("format").get<std::string>()] = &result;
  ASSERT_EQ(report.at("formats").size(), 3 * normal.size());
  const auto error_of = [&](const char* format) { return normal.at(format)->at("rms_error").get<double>(); };
  EXPECT_EQ(normal.at("mxfp6")->at("bits_per_element"), 6.25);
  EXPECT_EQ(normal.at("nvfp4")->at("bits_per_element"), 4.5);
  // Half a last place of the lowest number of a binade; half of 448 - 416, by 448.
  EXPECT_LE(normal.at("bf16")->at("max_error_of_group_amax"), 1.0 / 256);
  EXPECT_LE(normal.at("fp8")->at("max_error_of_group_amax"), 1.0 / 28 + 1e-6);
  const std::vector<const char*> ascending{"bf16", "mxfp8", "mxfp8-e5m2", "nvfp4", "mxfp4"};
  for (size_t i = 1; i < ascending.size(); ++i) EXPECT_LT(error_of(ascending[i - 1]), error_of(ascending[i]));
  EXPECT_LT(error_of("mxfp4"), 0.2);
}

TEST_F(Cli, BadBenchArgumentsNameTheFlagAndItsLimit) {
  expect_refused("bench formats --seed x", {"--seed"});
  expect_refused("bench formats --values 1000", {"--values", "1000", "128"});
  expect_refused("bench", {"subcommand", "formats"});
  expect_refused("bench lunch", {"bench: lunch: no such subcommand", "formats"});
  expect_refused("bench ep --tokens 0", {"--tokens", "65535"});
  expect_refused("bench ep --tokens 1,,2", {"--tokens", "1,,2"});
  expect_refused("bench ep --seed -1", {"--seed"});
  expect_refused("bench ep --replays 1", {"--replays", "2"});
  expect_refused("bench ep --mode neither", {"--mode", "both"});
  expect_refused("bench ep --target host --experts 12", {"--experts", "multiple of --ranks (8)"});
  expect_refused("bench ep --target host --hidden 12", {"--hidden", "multiple of 8"});
  expect_refused("bench ep --target host --experts 8 --top-k 9", {"--top-k", "--experts (8)"});
}

TEST_F(Cli, AKilledRankIsNamedAndAStalledOneWaitedFor) {
  if (is_unchecked()) GTEST_SKIP() << "kernels of an unchecked build wait for ever";
  const std::string ranks =
      "run --target host --ranks 3 --experts 6 --top-k 2 --hidden 32 --expert-width 8 --tokens 5 ";
  for (const char* phase : {"dispatch_async", "dispatch_wait", "gate_up", "combine_async", "combine_wait"}) {
    const Outcome outcome = run(ranks + "--deadline-ms 1500 --kill 1@" + phase);
    EXPECT_EQ(outcome.exit_code, 3) << phase;
    EXPECT_NE(outcome.err.find("for rank 1"), std::string::npos) << phase << ": " << outcome.err;
  }
  EXPECT_EQ(run(ranks + "--mode fused --stall 2@combine:50").exit_code, 0);
  // Nobody waits for all ranks between the phases of a step: who is late is late.
  const Outcome late = run(ranks + "--mode split --stall 2@combine_async:3000 --deadline-ms 1000");
  EXPECT_EQ(late.exit_code, 3) << late.out;
  EXPECT_NE(late.err.find("for rank 2"), std::string::npos) << late.err;
  EXPECT_EQ(run(ranks + "--steps 1 --kill 1@combine_wait").exit_code, 1) << "the dead rank has no output";
  expect_refused(ranks + "--kill 3@dispatch_wait", {"--kill", "0..2"});
  expect_refused(ranks + "--kill 1@lunch", {"--kill", "dispatch_async"});
  expect_refused(ranks + "--stall 1@down", {"--stall", "RANK@PHASE:MS"});
  expect_refused(ranks + "--deadline-ms 0", {"--deadline-ms"});
}

TEST_F(Cli, SimulatedSeedsAreRightAndReplay) {
  if (is_unchecked()) GTEST_SKIP() << "kernels of an unchecked build find no faults";
  const Outcome plain = run("simulate --seeds 60");
  EXPECT_EQ(plain.exit_code, 0) << plain.out;
  EXPECT_NE(plain.out.find("60 right, 0 wrong"), std::string::npos) << plain.out;
  EXPECT_EQ(run("simulate --seeds 60 --faults all").exit_code, 0);
  EXPECT_EQ(run("simulate --seeds 10 --faults kill,bad-id --ranks 2").exit_code, 0);
  // Poison over the wire meets a look for it, and poison of others; no order is wanted.
  for (const char* seed : {"1280", "3299", "5000"}) {
    const Outcome poisoned = run(std::string("simulate --seeds 1 --faults all --first-seed ") + seed);
    EXPECT_EQ(poisoned.exit_code, 0) << poisoned.out;
  }
  for (const char* format : {"bf16", "fp8", "nvfp4-by-expert"})
    for (const char* protocol : {"slotted", "direct"}) {
      const Outcome one = run(std::string("simulate --seeds 6 --faults all --combine-format fp8 --format ") +
                              format + " --protocol " + protocol);
      EXPECT_EQ(one.exit_code, 0) << one.out;
    }
  std::string scenarios;
  for (int seed = 1; seed <= 12; ++seed)
    scenarios += run("simulate --format bf16 --replay " + std::to_string(seed)).out;
  for (const char* groups : {"no wire", "groups of 1", "groups of 2"})
    EXPECT_NE(scenarios.find(groups), std::string::npos) << groups;
  const Outcome replay = run("simulate --faults all --replay 28");
  EXPECT_EQ(replay.exit_code, 0) << replay.out;
  EXPECT_NE(replay.out.find("last events of rank 0"), std::string::npos) << replay.out;
  const Outcome of_format = run("simulate --format mxfp6 --combine-format bf16 --replay 28");
  EXPECT_NE(of_format.out.find("mxfp6, combine in bf16"), std::string::npos) << of_format.out;
  EXPECT_NE(of_format.out.find("\nverified\n"), std::string::npos) << of_format.out;
  expect_refused("simulate --format int8", {"--format", "int8", "nvfp4-by-expert"});
  expect_refused("simulate --combine-format nvfp4", {"--combine-format", "nvfp4", "fp8"});
  expect_refused("simulate --faults fire", {"--faults", "short-stall"});
  expect_refused("simulate --ranks 9", {"--ranks"});
  expect_refused("simulate --ranks 2,,3", {"--ranks", "2,,3"});
  expect_refused("simulate --first-seed -1", {"--first-seed"});
  expect_refused("simulate --replay -1", {"--replay"});
}

TEST_F(Cli, DoctorSaysWhatRunsHere) {
  const Outcome text = run("doctor");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find("host     yes"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("direct: every row moves once"), std::string::npos) << text.out;
  const Outcome json = run("doctor --json -");
  EXPECT_NE(json.out.find("\"host_runs\": true"), std::string::npos);
  for (const TokenFormatKind format : kTokenFormatKinds)
    EXPECT_NE(json.out.find("\"name\": \"" + std::string(to_string(format)) + "\""), std::string::npos)
        << json.out;
}

TEST_F(Cli, DoctorShowsTheNumbersThatKernelsAreTunedBy) {
  const std::string json = run("doctor --json -").out;
  for (const char* key : {"expert_parallel_kernels", "expert_parallel_sizes", "expert_parallel_limits",
                          "attention_kernels", "attention_limits", "matmul_kernels"})
    EXPECT_NE(json.find("\"" + std::string(key) + "\": "), std::string::npos) << key;
  EXPECT_NE(run("doctor").out.find("16 stages of tokens"), std::string::npos);
}

TEST_F(Cli, JsonGoesToAFileOrAloneToStdoutWithEveryCommand) {
  const std::string path = folder / "report.json";
  for (const std::string& command :
       {kSmall, kSmallBench, std::string("simulate --seeds 2 "), std::string("simulate --replay 3 "),
        std::string("schedule --ctas 4 "), std::string("schedule --compare "),
        std::string("bench formats --values 1024 "), std::string("doctor ")}) {
    for (const char* to_stdout : {"--json -", "--json"}) {
      const Outcome alone = run(command + to_stdout);
      EXPECT_EQ(alone.exit_code, 0) << command << alone.err;
      EXPECT_EQ(alone.out.substr(0, 2), "{\n") << command << alone.out;
      EXPECT_EQ(alone.out.substr(alone.out.size() - 3), "\n}\n") << command << alone.out;
    }
    const Outcome table = run(command + "--json " + path);
    EXPECT_EQ(table.exit_code, 0) << command;
    EXPECT_NE(table.out.front(), '{') << command;
    EXPECT_EQ(read_file(path).substr(0, 2), "{\n") << command;
    expect_refused(command + "--json /no/such/folder/report.json", {"--json", "/no/such/folder"});
  }
}

TEST_F(Cli, ARunThatDoesNotFitSaysSo) {
  const Outcome outcome =
      run("run --target host --hidden 8192 --tokens 1024 --ranks 64 --experts 1024 --expert-width 65536 "
          "--top-k 8");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find("GiB of host memory, of which"), std::string::npos) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST_F(Cli, HelpTeaches) {
  for (const char* arguments : {"--help", "run --help", "bench ep --help", "bench formats --help",
                                "schedule --help", "doctor --help"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_GT(outcome.out.size(), 80u);
  }
}

}  // namespace
}  // namespace switchyard
