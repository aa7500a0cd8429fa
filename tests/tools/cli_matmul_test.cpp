// `switchyard bench matmul` and `bench layer` as a user meets them.
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_json;

class CliMatmul : public testing_support::CliTest {};

TEST_F(CliMatmul, BenchTimesBothMatmulsOfAnExpertAndVerifies) {
  const Outcome outcome = run(
      "bench matmul --target host --hidden 72 --expert-width 40 --experts 3 --rows 1,70 --replays 1 --json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = read_json(outcome.out);
  EXPECT_TRUE(report.at("verified").get<bool>());
  const auto& results = report.at("results");
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].at("shape"), "gate_up");
  EXPECT_EQ(results[0].at("inner"), 72);
  EXPECT_EQ(results[0].at("columns"), 80);
  EXPECT_EQ(results[3].at("shape"), "down");
  EXPECT_EQ(results[3].at("inner"), 40);
  EXPECT_EQ(results[3].at("columns"), 72);
  EXPECT_EQ(results[3].at("rows_per_expert"), 70);
  EXPECT_GT(results[3].at("tflops"), 0);
  EXPECT_EQ(results[3].at("bytes"), 2 * (3 * 72 * 40 + 3 * 70 * (40 + 72)));
  EXPECT_GT(results[3].at("limit_us"), 0);
}

// 8.25, 4.25 and 4.5 bits of each weight with its scale; K is no multiple of what a stage holds.
TEST_F(CliMatmul, BenchVerifiesCodedWeightsAndCountsTheirBytes) {
  for (const auto& [weights, bits_of_4_weights] :
       {std::pair{"mxfp8", 33}, std::pair{"mxfp4", 17}, std::pair{"nvfp4", 18}})
    for (const char* epilogue : {"none", "fused"}) {
      const Outcome outcome = run(
          "bench matmul --target host --hidden 320 --expert-width 192 --experts 2 --rows 3,70 --replays 1 "
          "--json --epilogue " +
          std::string(epilogue) + " --weights " + weights);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
      const json report = read_json(outcome.out);
      EXPECT_TRUE(report.at("verified").get<bool>()) << weights;
      EXPECT_EQ(report.at("weights"), weights);
      const auto& down = report.at("results").at(2);
      EXPECT_EQ(down.at("bytes"), 2 * 320 * 192 * bits_of_4_weights / 32 + 2 * 2 * 3 * (192 + 320))
          << weights;
    }
}

TEST_F(CliMatmul, BenchTriesEveryTuningAndAnyNumberOfBlocks) {
  const Outcome outcome =
      run("bench matmul --target host --hidden 16 --expert-width 8 --experts 1 --rows 3 --replays 1 "
          "--tunings all --blocks 6");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* tuning : {"64x128x64x8", "128x256x64x4+weights", "128x256x64x4+rows"})
    EXPECT_NE(outcome.out.find(tuning), std::string::npos) << outcome.out;
}

TEST_F(CliMatmul, BenchVerifiesFusedEpilogues) {
  for (const char* weights : {"bf16", "fp8"}) {
    const Outcome outcome =
        run("bench matmul --target host --hidden 144 --expert-width 192 --experts 2 --rows 3,70 --replays 1 "
            "--epilogue fused --json --weights " +
            std::string(weights));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    const json report = read_json(outcome.out);
    EXPECT_TRUE(report.at("verified").get<bool>()) << weights;
    EXPECT_EQ(report.at("epilogue"), "fused");
  }
}

TEST_F(CliMatmul, BenchTimesALayerAndItsPartsAndVerifies) {
  for (const char* options : {"--format bf16 --protocol slotted", "--format fp8 --shared-expert",
                              "--combine-format fp8 --protocol direct --shared-expert", "--weights mxfp4",
                              "--weights nvfp4 --shared-expert", "--weights mxfp8"}) {
    const Outcome outcome =
        run("bench layer --target host --ranks 2 --hidden 128 --experts 4 --expert-width 64 --top-k 2 "
            "--tokens 3,9 --replays 1 --json " +
            std::string(options));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    const json report = read_json(outcome.out);
    EXPECT_TRUE(report.at("verified").get<bool>()) << options;
    ASSERT_EQ(report.at("results").size(), 2u);
    const auto& result = report.at("results")[1];
    EXPECT_EQ(result.at("tokens"), 9);
    for (const char* part : {"route", "dispatch", "gate_up", "down", "combine"})
      EXPECT_GT(result.at("parts").at(part), 0) << part;
    EXPECT_GT(result.at("median_us"), 0);
  }
}

TEST_F(CliMatmul, RunVerifiesFastMatmulsInEveryFormat) {
  for (const char* options :
       {"--protocol slotted",
        "--protocol direct --mode fused --shared-expert",
        "--format fp8 --protocol direct",
        "--format fp8-ue8m0 --protocol direct",
        "--format fp8-ue8m0 --protocol slotted --shared-expert",
        "--format fp8 --protocol slotted --padding 0.2 --combine-format fp8",
        "--combine-format fp8 --mode fused",
        "--combine-format fp8 --protocol direct --shared-expert --p2p-world-size 1",
        "--combine-format fp8 --protocol direct --format fp8 --reduce-at-owner",
        "--combine-format fp8 --gate-up-start with-rows --mode fused",
        "--format fp8 --skip-a2a",
        "--layout masked --alignment 8",
        "--format fp8 --layout masked --shared-expert",
        "--in-flight 2 --mode fused",
        "--reduce-at-owner",
        "--format nvfp4-by-expert --shared-expert --replicas 1",
        "--format nvfp4-by-expert --skip-a2a --replicas 1",
        "--format mxfp6 --layout masked --encoded-tokens",
        "--format nvfp4 --device-scale --encoded-tokens --shared-expert",
        "--format fp8 --encoded-tokens --ids int64 --row-gap 32",
        "--gate-up-start with-rows --mode fused",
        "--gate-up-start with-rows --shared-expert --in-flight 2",
        "--combine-start with-experts --mode fused --shared-expert --format fp8",
        "--combine-start with-experts --gate-up-start with-rows --mode fused --in-flight 2",
        "--p2p-world-size 1 --format fp8",
        "--replicas 1 --padding 0.3",
        "--weights mxfp4 --shared-expert --protocol direct",
        "--weights nvfp4 --combine-format fp8",
        "--weights mxfp8 --layout masked --reduce-at-owner",
        "--weights mxfp4 --format mxfp8 --shared-expert",
        "--weights nvfp4 --format fp8",
        "--routing one-expert"}) {
    const Outcome outcome =
        run("run --target host --matmul fast --ranks 2 --hidden 256 --experts 4 --expert-width 64 --top-k 2 "
            "--tokens 9 --steps 2 --json " +
            std::string(options));
    EXPECT_EQ(outcome.exit_code, 0) << options << outcome.err << outcome.out;
    const json report = read_json(outcome.out);
    EXPECT_TRUE(report.at("verified").get<bool>()) << options;
    EXPECT_EQ(report.at("matmul"), "fast");
    const bool is_early = std::string(options).find("with-rows") != std::string::npos;
    EXPECT_EQ(report.at("gate_up_start"), is_early ? "with-rows" : "behind-dispatch");
    if (is_early) {
      EXPECT_EQ(report.at("protocol"), "direct") << options;
    }
    for (const char* phase : {"decode", "silu_mul", "encode"})
      EXPECT_FALSE(report.at("phases").contains(phase)) << options;
  }
}

// Faults and traces name the parts of the library's MoeLayer.
TEST_F(CliMatmul, FastRunsHaveThePhasesOfTheLibrarysLayer) {
  const std::string shape =
      "run --target host --matmul fast --ranks 3 --experts 6 --top-k 2 --hidden 64 --expert-width 8 --tokens "
      "5 ";
  const auto phases_of = [&](const std::string& options) {
    std::vector<std::string> names;
    const json report = read_json(run(shape + "--json - " + options).out);
    for (const auto& phase : report.at("phases").items()) names.push_back(phase.key());
    return names;  // in the order of the alphabet
  };
  EXPECT_EQ(phases_of("--mode fused"),
            (std::vector<std::string>{"combine", "dispatch", "down", "gate_up", "route"}));
  EXPECT_EQ(phases_of("--mode split --gate-up-start with-rows"),
            (std::vector<std::string>{"combine_async", "combine_wait", "dispatch_async", "dispatch_wait",
                                      "down", "gate_up", "route"}));
  // What starts with the rows is between the halves of dispatch.
  const auto table_of = [&](const std::string& options) {
    return run(shape + "--mode split " + options).out;
  };
  const std::string early = table_of("--gate-up-start with-rows"), late = table_of("");
  EXPECT_LT(early.find("\n  gate_up "), early.find("\n  dispatch_wait ")) << early;
  EXPECT_GT(late.find("\n  gate_up "), late.find("\n  dispatch_wait ")) << late;
  EXPECT_NE(early.find("direct: gate_up starts with the rows"), std::string::npos) << early;
  EXPECT_EQ(phases_of("--mode fused --skip-a2a --routing one-expert"),
            (std::vector<std::string>{"all_reduce", "combine", "dispatch", "down", "gate_up"}));
  EXPECT_NE(
      run(shape + "--mode fused --combine-start with-experts").out.find("combine takes each expert's rows"),
      std::string::npos);
  expect_refused(shape + "--mode split --combine-start with-experts", {"--combine-start", "--mode fused"});
  expect_refused(shape + "--mode fused --combine-start with-experts --protocol slotted",
                 {"--combine-start", "--protocol direct"});
  expect_refused(shape + "--mode fused --combine-start with-experts --p2p-world-size 1",
                 {"--p2p-world-size: 1", "--combine-start"});
  const std::string trace = folder / "trace.json";
  ASSERT_EQ(run(shape + "--stall 1@down:5 --trace " + trace).exit_code, 0);
  EXPECT_NE(testing_support::read_file(trace).find("gate_up"), std::string::npos);
  expect_refused(shape + "--kill 1@silu_mul", {"--kill", "gate_up, down, combine_async"});
  if (is_unchecked()) return;
  for (const auto& [options, blame] :
       {std::pair{"--kill 1@combine_async --deadline-ms 1500", "for rank 1"},
        std::pair{"--mode fused --kill 1@dispatch --deadline-ms 1500", "for rank 1"},
        std::pair{"--kill 1@gate_up --transport process --deadline-ms 20000",
                  "rank 0: switchyard run: rank 1 has ended"}}) {
    const Outcome outcome = run(shape + options);
    EXPECT_EQ(outcome.exit_code, 3) << options;
    EXPECT_NE(outcome.err.find(blame), std::string::npos) << options << outcome.err;
  }
}

TEST_F(CliMatmul, RanksOfFastRunsMayBeProcesses) {
  for (const char* options : {"--format fp8 --shared-expert --mode fused", "--gate-up-start with-rows"}) {
    const Outcome outcome =
        run("run --target host --transport process --matmul fast --ranks 2 --hidden 128 --experts 4 "
            "--expert-width 64 --top-k 2 --tokens 5 " +
            std::string(options));
    EXPECT_EQ(outcome.exit_code, 0) << options << outcome.err << outcome.out;
  }
}

TEST_F(CliMatmul, ALayerMayStartWithTheRows) {
  const Outcome outcome = run(
      "bench layer --target host --ranks 2 --hidden 128 --experts 4 --expert-width 64 --top-k 2 --tokens 9 "
      "--matmul-blocks 2 --gate-up-start with-rows --json -");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = read_json(outcome.out);
  EXPECT_TRUE(report.at("verified").get<bool>());
  EXPECT_EQ(report.at("gate_up_start"), "with-rows");
  EXPECT_EQ(report.at("results").at(0).at("protocol"), "direct");
}

TEST_F(CliMatmul, BadArgumentsNameTheFlagAndItsLimit) {
  expect_refused("bench matmul --target host --hidden 12", {"--hidden", "multiple of 8"});
  expect_refused("bench matmul --target host --expert-width 20", {"--expert-width", "multiple of 8"});
  expect_refused("bench matmul --target host --weights fp8 --epilogue fused --expert-width 16",
                 {"--expert-width", "multiple of 64"});
  expect_refused("bench matmul --target host --weights nvfp4 --hidden 96", {"--hidden", "multiple of 64"});
  expect_refused("bench matmul --target host --weights fp6", {"--weights", "bf16, fp8, mxfp4, nvfp4, mxfp8"});
  expect_refused("run --target host --matmul fast --format fp8 --expert-width 24",
                 {"--expert-width", "multiple of 64"});
  expect_refused("run --target host --matmul fast --layout per-rank",
                 {"--layout: per-rank", "ragged and masked", "--matmul reference"});
  expect_refused("run --target host --weights mxfp4", {"--weights: mxfp4", "--matmul fast"});
  const std::string coded = "--matmul fast --weights nvfp4 --hidden 128 --expert-width 64 ";
  expect_refused("run --target host --matmul fast --weights nvfp4 --hidden 96 --expert-width 64",
                 {"--hidden: 96", "multiple of 64"});
  expect_refused("run --target host --matmul fast --weights mxfp8 --hidden 96 --expert-width 48",
                 {"--expert-width: 48", "multiple of 32"});
  expect_refused("run --target host --gate-up-start with-rows " + coded, {"--gate-up-start", "--weights"});
  expect_refused("run --target host --mode fused --combine-start with-experts " + coded,
                 {"--combine-start", "--weights"});
  expect_refused("run --target host --matmul fast --combine-format fp8 --hidden 64",
                 {"--hidden: 64", "multiple of 128 with --combine-format fp8"});
  expect_refused(
      "run --target host --matmul fast --mode fused --combine-start with-experts --ranks 4 --p2p-world-size "
      "2",
      {"--p2p-world-size: 2", "--ranks (4)", "--combine-start"});
  expect_refused("run --target host --combine-format fp8 --reduce-at-owner " + coded,
                 {"--combine-format: fp8", "--protocol slotted", "--weights nvfp4"});
  expect_refused("bench layer --target host --weights mxfp4 --expert-width 96",
                 {"--expert-width: 96", "multiple of 64"});
  expect_refused("run --target host --gate-up-start with-rows", {"--gate-up-start", "--matmul fast"});
  expect_refused("run --target host --matmul fast --gate-up-start with-rows --format fp8 --expert-width 64",
                 {"--gate-up-start", "--format bf16"});
  expect_refused("run --target host --matmul fast --gate-up-start with-rows --protocol slotted",
                 {"--gate-up-start", "--protocol direct"});
  expect_refused("run --target host --matmul fast --gate-up-start with-rows --delivery receiver",
                 {"--gate-up-start", "--delivery sender"});
  expect_refused("run --target host --matmul fast --gate-up-start with-rows --layout masked",
                 {"--gate-up-start", "--layout ragged"});
  expect_refused("bench layer --target host --format fp8 --expert-width 72",
                 {"--expert-width", "multiple of 64"});
  expect_refused("bench layer --target host --format fp8 --gate-up-start with-rows",
                 {"--gate-up-start", "--format bf16 or fp8-by-row, not fp8"});
  expect_refused("bench layer --target host --protocol slotted --gate-up-start with-rows",
                 {"--gate-up-start", "--protocol direct"});
  expect_refused("bench layer --target host --ranks 3 --experts 8", {"--experts", "--ranks"});
  expect_refused("bench layer --target host --ranks 65", {"--ranks", "65", "1", "64"});
  expect_refused("bench layer --target host --hidden 16392", {"--hidden", "16392", "16384"});
  expect_refused("bench layer --target host --top-k 33", {"--top-k", "33", "32"});
  expect_refused("bench layer --target host --tokens 65536", {"--tokens", "65536", "65535"});
  expect_refused("bench matmul --target host --rows 0", {"--rows"});
  expect_refused("bench matmul --target host --tunings best", {"--tunings", "chosen, all"});
}

}  // namespace
}  // namespace switchyard
