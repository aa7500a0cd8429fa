// `switchyard bench matmul` as a user meets it.
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
}

TEST_F(CliMatmul, BenchTriesEveryTuningAndAnyNumberOfBlocks) {
  const Outcome outcome =
      run("bench matmul --target host --hidden 16 --expert-width 8 --experts 1 --rows 3 --replays 1 "
          "--tunings all --blocks 6");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* tuning : {"64x128x64x8", "128x256x64x4+weights", "128x256x64x4+rows"})
    EXPECT_NE(outcome.out.find(tuning), std::string::npos) << outcome.out;
}

TEST_F(CliMatmul, BadArgumentsNameTheFlagAndItsLimit) {
  expect_refused("bench matmul --target host --hidden 12", {"--hidden", "multiple of 8"});
  expect_refused("bench matmul --target host --expert-width 20", {"--expert-width", "multiple of 8"});
  expect_refused("bench matmul --target host --rows 0", {"--rows"});
  expect_refused("bench matmul --target host --tunings best", {"--tunings", "chosen, all"});
}

}  // namespace
}  // namespace switchyard
