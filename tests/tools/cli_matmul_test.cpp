// `switchyard bench matmul` as a user meets it.
#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using testing_support::JsonReader;
using testing_support::Outcome;

class CliMatmul : public testing_support::CliTest {};

TEST_F(CliMatmul, BenchTimesBothMatmulsOfAnExpertAndVerifies) {
  const Outcome outcome = run(
      "bench matmul --target host --hidden 72 --expert-width 40 --experts 3 --rows 1,70 --replays 1 --json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = JsonReader::read(outcome.out);
  ASSERT_TRUE(json.has_value()) << outcome.out;
  EXPECT_EQ((*json)["verified"].number, 1);
  const auto& results = (*json)["results"].items;
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0]["shape"].text, "gate_up");
  EXPECT_EQ(results[0]["inner"].number, 72);
  EXPECT_EQ(results[0]["columns"].number, 80);
  EXPECT_EQ(results[3]["shape"].text, "down");
  EXPECT_EQ(results[3]["inner"].number, 40);
  EXPECT_EQ(results[3]["columns"].number, 72);
  EXPECT_EQ(results[3]["rows_per_expert"].number, 70);
  EXPECT_GT(results[3]["tflops"].number, 0);
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
