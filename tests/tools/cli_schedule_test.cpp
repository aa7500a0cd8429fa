// `switchyard schedule` as a user meets it.
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

class CliSchedule : public testing_support::CliTest {};

TEST_F(CliSchedule, CountsTilesAndPredictsTheEnd) {
  // Two heads of three tiles that cost 2, 3 and 4; three blocks.
  const std::string small = "schedule --batch 1 --heads 2 --seq 300 --causal --ctas 3 ";
  const Outcome text = run(small + "--scheduler tile --order default");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  for (const char* part : {"1 sequence of 300, 2 heads of 128, causal", "6 tiles of 128 rows for 3 blocks",
                           "TileScheduler<DEFAULT>", "2 2 2", "least 4, mean 6.00, most 8",
                           "makespan          8 (at best 6)", "efficiency        0.750"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in " << text.out;
  // Longest first: 4 4 3 3 2 2, each to the block that is free.
  const Outcome queued = run(small + "--scheduler queued --order lpt --json -");
  const json report = read_json(queued.out);
  EXPECT_EQ(report.at("heads"), 2);
  EXPECT_EQ(report.at("kv_heads"), 2);
  ASSERT_EQ(report.at("schedules").size(), 1u);
  const json& schedule = report.at("schedules").front();
  EXPECT_EQ(schedule.at("type"), "QueuedTileScheduler<LPT>");
  EXPECT_EQ(schedule.at("tiles"), 6);
  EXPECT_EQ(schedule.at("total_cost"), 18);
  EXPECT_EQ(schedule.at("makespan"), 6);
  EXPECT_EQ(schedule.at("efficiency"), 1);
  const Outcome rotated = run(small + "--scheduler tile --order rotate");
  EXPECT_NE(rotated.out.find("makespan          6 "), std::string::npos) << rotated.out;
}

TEST_F(CliSchedule, ComparesAndDraws) {
  const std::string svg_path = folder / "schedule.svg", json_path = folder / "schedule.json";
  const std::string ragged = "schedule --seq-lens 1000,0,1,300 --heads 4 --kv-heads 2 --causal --ctas 5 ";
  const Outcome all = run(ragged + "--compare --svg " + svg_path + " --json " + json_path);
  EXPECT_EQ(all.exit_code, 0) << all.err;
  const json report = read_json(read_file(json_path));
  ASSERT_EQ(report.at("schedules").size(), 9u);
  for (const json& schedule : report.at("schedules")) {
    EXPECT_EQ(schedule.at("tiles"), 4 * (8 + 1 + 3));
    EXPECT_EQ(schedule.at("tiles_per_block").size(), 5u);
    EXPECT_GE(schedule.at("makespan"), schedule.at("bound"));
    EXPECT_NEAR(schedule.at("efficiency").get<double>(),
                schedule.at("total_cost").get<double>() / (5 * schedule.at("makespan").get<double>()), 1e-6);
  }
  for (const char* scheduler : {"transient", "tile", "queued"})
    for (const char* order : {"default", "rotate", "lpt"}) {
      const std::string name = std::string(scheduler) + ", " + order;
      EXPECT_NE(read_file(svg_path).find(">" + name + "<"), std::string::npos) << name;
    }
  for (const char* part : {"4 sequences of 0 to 1000, 4 heads on 2 K/V heads of 128, causal", "transient",
                           "rotate", "queued", "  *\n", "No schedule ends before"})
    EXPECT_NE(all.out.find(part), std::string::npos) << part << " in " << all.out;

  const Outcome one = run(ragged + "--svg -");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out.rfind("<svg", 0), 0u) << "alone on stdout";
  for (const char* part : {"QueuedTileScheduler&lt;LPT&gt;", "sequence 3", "idle", "time, in K/V tiles",
                           ">block<", "best possible end", "</svg>\n"})
    EXPECT_NE(one.out.find(part), std::string::npos) << part;
}

TEST_F(CliSchedule, TakesOddShapes) {
  for (const char* shape :
       {"--batch 0", "--seq 0", "--seq 1 --batch 300", "--seq-lens 0", "--seq-lens 1 --ctas 7",
        "--seq 77 --tile-m 5 --tile-n 3 --heads 7 --ctas 1 --tile-overhead 0"})
    for (const char* mode : {"--compare", "--compare --causal", "--scheduler transient"})
      EXPECT_EQ(run(std::string("schedule ") + shape + " " + mode + " --svg " + (folder / "a.svg").string())
                    .exit_code,
                0)
          << shape << " " << mode;
}

TEST_F(CliSchedule, BadArgumentsNameTheFlagAndItsLimit) {
  expect_refused("schedule --batch 65537", {"--batch", "65536"});
  expect_refused("schedule --heads 0", {"--heads", "1024"});
  expect_refused("schedule --heads 16 --kv-heads 5", {"--kv-heads", "divide --heads (16)"});
  expect_refused("schedule --seq-lens 1,,2", {"--seq-lens", "1,,2"});
  expect_refused("schedule --seq-lens 1,2 --seq 3", {"--seq-lens", "--seq"});
  expect_refused("schedule --seq-lens 1,2 --batch 2", {"--seq-lens", "--batch"});
  expect_refused("schedule --tile-m 0", {"--tile-m"});
  expect_refused("schedule --ctas 0", {"--ctas", "65535"});
  expect_refused("schedule --scheduler fifo", {"--scheduler", "transient"});
  expect_refused("schedule --order random", {"--order", "lpt"});
  expect_refused("schedule --compare --order lpt", {"--compare", "--order"});
  expect_refused("schedule --tile-overhead -1", {"--tile-overhead"});
  expect_refused("schedule --batch 65536 --seq 16777216 --tile-m 1", {"--seq", "tiles"});
  expect_refused("schedule --batch 65536 --seq 65536 --tile-m 65536", {"--seq", "32 bits"});
  expect_refused("schedule --svg /no/such/folder/a.svg", {"--svg", "/no/such/folder"});
  expect_refused("schedule --svg - --json -", {"--svg", "stdout"});
}

}  // namespace
}  // namespace switchyard
