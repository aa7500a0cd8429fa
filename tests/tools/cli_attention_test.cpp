// `switchyard attend`, `bench attention` and `schedule --measure` as a user meets them.
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_file;
using testing_support::read_json;

class CliAttention : public testing_support::CliTest {};

const std::string kSmall = "attend --target host --heads 2 --head-dim 64 ";

TEST_F(CliAttention, AttendVerifiesAndSaysWhatWasChosen) {
  const Outcome outcome = run(kSmall + "--seq-lens 70,0,1 --causal");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("verified   all 142 rows"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("queued, order default"), std::string::npos) << outcome.out;
}

TEST_F(CliAttention, AttendTakesEveryKindOfBatch) {
  for (const char* batch :
       {"--batch 0", "--batch 2 --seq 0", "--batch 2 --seq 90 --kv-heads 1 --window 20 --scheduler transient",
        "--batch 3 --seq 1 --kv-lens 600 --kv-heads 1",
        "--seq-lens 2,1 --kv-lens 40,300 --page-size 16 --causal",
        "--seq-lens 80,30 --scheduler tile --order rotate --ctas 1",
        "--seq-lens 80,1 --kv-lens 90,600 --sinks --soft-cap 1.5",
        "--seq-lens 64 --soft-cap 1000",
        "--seq-lens 2,1 --kv-lens 40,300 --kv-format fp8 --causal",
        "--seq-lens 17,0,70 --kv-lens 40,300,50 --kv-format fp8 --causal",
        "--seq-lens 20,1 --kv-lens 30,600 --kv-format fp8 --sinks --soft-cap 1.5"}) {
    const Outcome outcome = run(kSmall + batch);
    EXPECT_EQ(outcome.exit_code, 0) << batch << "\n" << outcome.out << outcome.err;
  }
  for (const char* batch : {"--seq-lens 2,1 --kv-lens 40,130", "--batch 1 --seq 17"}) {
    const Outcome latent = run("attend --target host --mla --heads 16 --causal " + std::string(batch));
    EXPECT_EQ(latent.exit_code, 0) << latent.out << latent.err;
  }
}

TEST_F(CliAttention, AttendReportsAsJson) {
  const Outcome outcome = run(kSmall + "--batch 1 --seq 40 --json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = read_json(outcome.out);
  EXPECT_TRUE(report.at("verified").get<bool>());
  EXPECT_EQ(report.at("rows"), 80);
  EXPECT_EQ(report.at("scheduler"), "tile");
  EXPECT_LT(report.at("relative_error"), 0.01);
}

TEST_F(CliAttention, AttendLaunchesNoMoreBlocksThanTiles) {
  for (const char* scheduler : {"auto", "transient", "tile", "queued"}) {
    const Outcome outcome = run(kSmall + "--batch 1 --seq 40 --ctas 65535 --json --scheduler " + scheduler);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json report = read_json(outcome.out);
    EXPECT_EQ(report.at("ctas"), 2);
  }
}

TEST_F(CliAttention, BadArgumentsNameTheFlagAndItsLimit) {
  expect_refused(kSmall + "--kv-heads 3", {"--kv-heads", "divisor of --heads (2)"});
  expect_refused("attend --head-dim 96", {"--head-dim", "64", "256"});
  expect_refused(kSmall + "--page-size 24", {"--page-size"});
  expect_refused("attend --target host --mla --head-dim 64", {"--mla", "--head-dim"});
  expect_refused("attend --target host --mla --kv-format fp8 --batch 1 --seq 17", {"--kv-format", "--mla"});
  expect_refused("attend --target host --mla --batch 1 --seq 17 --soft-cap 3", {"--soft-cap", "--mla"});
  expect_refused("attend --target host --mla --batch 1 --seq 17 --sinks", {"--sinks", "--mla"});
  expect_refused(kSmall + "--kv-lens 1,2,3", {"--kv-lens", "3 values given for 2 sequences"});
  expect_refused(kSmall + "--scheduler best", {"--scheduler"});
  expect_refused(kSmall + "--seq-lens 5 --batch 2", {"--seq-lens", "--batch"});
  expect_refused(kSmall + "--json /no/such/folder/file", {"--json"});
  expect_refused("bench attention --target host --head-dims 96", {"--head-dims", "96"});
  expect_refused("schedule --measure --target host --head-dim 32", {"--measure", "--head-dim"});
}

TEST_F(CliAttention, BenchTimesEveryShapeAndVerifies) {
  const std::string inputs_path = folder / "inputs.npy";
  const Outcome outcome = run(
      "bench attention --target host --lengths 32 --tokens 64 --replays 1 --json - --inputs " + inputs_path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(testing_support::read_file(inputs_path).substr(0, 6), "\x93NUMPY");
  const json report = read_json(outcome.out);
  ASSERT_EQ(report.at("results").size(), 28u);  // full, causal, two ragged, 16 decoding, eight of MLA
  EXPECT_EQ(report.at("input_shifts").size(), 3u);
  for (const json& result : report.at("results")) {
    EXPECT_TRUE(result.at("verified").get<bool>());
    EXPECT_GT(result.at("median_us"), 0);
    EXPECT_EQ(result.at("read_terabytes_per_second") > 0,
              result.at("group") == "decode" || result.at("group") == "mla");
  }
}

TEST_F(CliAttention, BenchTimesOnlyWhatIsAskedFor) {
  const Outcome outcome = run("bench attention --target host --only ragged --replays 1 --json -");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = read_json(outcome.out);
  ASSERT_EQ(report.at("results").size(), 2u);
  for (const json& result : report.at("results")) EXPECT_EQ(result.at("group"), "ragged");
  expect_refused("bench attention --target host --only prefill", {"--only", "prefill", "decode"});
}

TEST_F(CliAttention, BenchTimesTheKeysThatAreAskedFor) {
  const std::string bench = "bench attention --target host --lengths 32 --tokens 32 --replays 1 ";
  for (const std::string format : {"bf16", "fp8"}) {
    const Outcome outcome = run(bench + "--json - --kv-format " + format);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json report = read_json(outcome.out);
    ASSERT_EQ(report.at("results").size(), 12u) << format;  // full, causal, two ragged, eight decoding
    for (const json& result : report.at("results")) {
      EXPECT_EQ(result.at("kv_format"), format);
      EXPECT_NE(result.at("group"), "mla");
      EXPECT_TRUE(result.at("verified").get<bool>());
      EXPECT_EQ(result.at("read_terabytes_per_second") > 0, result.at("group") == "decode");
    }
  }
  const json report = read_json(run(bench + "--json - --mla").out);
  ASSERT_EQ(report.at("results").size(), 12u);
  for (const json& result : report.at("results")) {
    EXPECT_EQ(result.at("head_dim"), 576);
    EXPECT_NE(result.at("group"), "decode");
    EXPECT_TRUE(result.at("verified").get<bool>());
    EXPECT_EQ(result.at("read_terabytes_per_second") > 0, result.at("group") == "mla");
  }
  expect_refused(bench + "--mla --only decode", {"--only", "decode", "--mla"});
  expect_refused(bench + "--kv-format fp8 --only mla", {"--only", "mla", "--kv-format"});
  expect_refused(bench + "--mla --kv-format fp8", {"--mla", "--kv-format"});
  expect_refused(bench + "--mla --head-dims 64", {"--mla", "--head-dims"});
  expect_refused(bench + "--kv-format fp4", {"--kv-format", "fp4", "bf16, fp8"});
}

TEST_F(CliAttention, BenchTunesOverAllKernelsOfAShape) {
  const std::string tune = "bench attention --target host --head-dims 128 --lengths 32 --tokens 32 --tune ";
  const Outcome outcome = run(tune + "--only full --replays 1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("128 full: 128x128"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("128 full: 128x176"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("; fastest"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("; chosen"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("this machine would choose: 128 full: 128x1"), std::string::npos) << outcome.out;
  const json report = read_json(run(tune + "--replays 1 --json -").out);
  for (const json& result : report.at("results")) {
    EXPECT_TRUE(result.at("verified").get<bool>());
    EXPECT_NE(result.at("group"), "decode");
    EXPECT_EQ(result.at("kernel").get<std::string>().substr(0, 4), "128 ");
  }
  // Of a short sequence the first kernel is chosen, whichever is the fastest.
  const json &first = report.at("results").at(0), &second = report.at("results").at(1);
  EXPECT_EQ(first.at("candidate"), 0);
  EXPECT_EQ(second.at("candidate"), 1);
  EXPECT_TRUE(first.at("chosen").get<bool>());
  EXPECT_FALSE(second.at("chosen").get<bool>());
  EXPECT_EQ(first.at("fastest").get<bool>(), first.at("median_us") <= second.at("median_us"));
  for (const char* nothing : {"--only decode", "--only mla"})
    expect_refused(tune + nothing, {"--tune", "nothing is left"});
  for (const char* nothing : {"--mla", "--kv-format fp8", "--only full --lengths 8"})
    expect_refused("bench attention --target host --tune " + std::string(nothing),
                   {"--tune", "nothing is left"});
}

TEST_F(CliAttention, ScheduleMeasuresWhatItPredicts) {
  const std::string svg_path = folder / "measured.svg";
  const Outcome outcome =
      run("schedule --target host --measure --batch 2 --seq 200 --heads 2 --head-dim 64 --causal --ctas 3 "
          "--json - --svg " +
          svg_path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = read_json(outcome.out);
  ASSERT_EQ(report.at("schedules").size(), 2u);
  const json& predicted = report.at("schedules")[0];
  const json& measured = report.at("schedules")[1];
  EXPECT_EQ(measured.at("tiles"), predicted.at("tiles"));
  EXPECT_TRUE(measured.at("verified").get<bool>());
  EXPECT_GT(measured.at("makespan").get<double>(),
            0);  // the unit is chosen so that the total is the predicted one
  EXPECT_NE(read_file(svg_path).find("measured"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
