// What `switchyard run` is asked for beyond a shape: inputs as engines have them, steps in flight,
// all-reduces of groups; and what `bench ep` predicts.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::read_json;

class CliRun : public testing_support::CliTest {
 protected:
  // Tokens that have several experts on each rank.
  json report_of_many(const std::string& arguments) {
    return read_json(run("run --target host --ranks 3 --experts 9 --top-k 6 --hidden 128 --expert-width 64 "
                         "--json - " +
                         arguments)
                         .out);
  }
  json report_of(const std::string& arguments) {
    return read_json(run("run --target host --ranks 4 --experts 8 --top-k 2 --hidden 128 --expert-width 16 "
                         "--tokens 3 --json - " +
                         arguments)
                         .out);
  }
};

TEST_F(CliRun, InputsMayBeAsEnginesHaveThem) {
  const json wide = report_of("--ids int64 --row-gap 32 --format fp8 --encoded-tokens");
  EXPECT_EQ(wide.at("verified"), true);
  EXPECT_EQ(wide.at("inputs"), "64-bit ids, encoded tokens, 32 bytes between rows");
  EXPECT_EQ(report_of("--format nvfp4 --device-scale").at("verified"), true);
  expect_refused("run --target host --encoded-tokens", {"--encoded-tokens: --format is bf16"});
  expect_refused("run --target host --device-scale --format fp8", {"--device-scale: --format is fp8"});
  expect_refused("run --target host --row-gap 8", {"--row-gap: 8 must be a multiple of 16"});
}

TEST_F(CliRun, StepsMayBeInFlightAtOnce) {
  const json two = report_of("--in-flight 2 --steps 3"), one = report_of("--steps 3");
  EXPECT_EQ(two.at("verified"), true);
  EXPECT_EQ(two.at("in_flight"), 2);
  EXPECT_EQ(two.at("memory_per_rank"), 2 * one.at("memory_per_rank").get<int64_t>());
  expect_refused("run --target host --in-flight 2 --trace x", {"--trace", "--in-flight must be 1"});
}

TEST_F(CliRun, OwnersSumUpAndSayWhatItCosts) {
  const json plain = report_of("--protocol direct"), bf16 = report_of_many("--reduce-at-owner --tokens 5"),
             fp8 = report_of_many("--reduce-at-owner --tokens 5 --combine-format fp8");
  EXPECT_EQ(bf16.at("verified"), true);
  EXPECT_EQ(fp8.at("verified"), true);
  EXPECT_FALSE(plain.contains("combine_error"));
  EXPECT_GT(bf16.at("combine_error_rms"), 0);
  EXPECT_GT(fp8.at("combine_error_rms"), bf16.at("combine_error_rms"));
}

// A token comes once to each rank, and goes to its experts there.
TEST_F(CliRun, RowsMayComeOncePerRank) {
  for (const char* more :
       {"--tokens 3", "--tokens 3 --format nvfp4 --mode fused",
        "--tokens 3 --combine-format fp8 --shared-expert", "--tokens 3 --skip-a2a", "--tokens 3 --replicas 2",
        "--tokens 3 --padding 0.5 --alignment 8 --in-flight 2 --steps 3", "--tokens 0",
        "--tokens-per-rank 5,0,7", "--tokens 3 --routing one-expert"}) {
    const json report = report_of_many("--layout per-rank " + std::string(more));
    EXPECT_EQ(report.at("verified"), true) << more << report;
    EXPECT_EQ(report.at("layout"), "per-rank");
    EXPECT_TRUE(report.at("phases").contains("expand"));
  }
  EXPECT_LT(report_of_many("--layout per-rank").at("memory_per_rank"),
            report_of_many("--protocol direct").at("memory_per_rank"));
}

TEST_F(CliRun, GroupsAddUpTheirOutputs) {
  for (const char* size : {"1", "2", "4", "0"}) {
    const json report = report_of(std::string("--skip-a2a --shared-expert --allreduce-world-size ") + size);
    EXPECT_EQ(report.at("verified"), true) << size;
  }
  EXPECT_EQ(report_of("--skip-a2a --allreduce-world-size 1").at("bytes_moved"), 0);
  expect_refused("run --target host --ranks 4 --skip-a2a --allreduce-world-size 3",
                 {"--allreduce-world-size: 3 must divide --ranks (4)"});
  expect_refused("run --target host --allreduce-world-size 2", {"--allreduce-world-size", "--skip-a2a"});
}

// The bytes of a link are those that leave a rank, and the same code plans.
TEST_F(CliRun, BenchPredictsTimesOnLinksAndNics) {
  const std::string shape = "--ranks 4 --experts 8 --top-k 2 --hidden 1024 --tokens 64 ";
  const json report =
      read_json(run("bench ep --target host --replays 2 --n-sms 2 --protocol both --json - " + shape).out);
  EXPECT_EQ(report.at("verified"), true);
  for (const json& traffic : report.at("sizes").at(0).at("traffic")) {
    const json &links = traffic.at("predicted_on_links"), &nics = traffic.at("predicted_on_nics");
    EXPECT_EQ(links.at("link_gb_s"), 450);
    EXPECT_EQ(nics.at("nic_gb_s"), 50);
    const json& sent = traffic.at("bytes").at("dispatch").at("bytes_to_other_ranks");
    const double most = *std::max_element(sent.begin(), sent.end());
    EXPECT_GT(nics.at("dispatch_us").get<double>(), most / 50e3);
    EXPECT_GT(nics.at("dispatch_us").get<double>(), links.at("dispatch_us").get<double>());
    EXPECT_GT(nics.at("step_us").get<double>(), links.at("step_us").get<double>());
  }
  EXPECT_NE(run("bench ep --target host --replays 2 --n-sms 2 " + shape).out.find("on NVLink"),
            std::string::npos);
}

// A token crosses a NIC once for each rank, and not once for each of its experts there.
TEST_F(CliRun, BenchPredictsRowsPerRank) {
  const auto predicted_us = [&](const std::string& layout) {
    const json report =
        read_json(run("bench ep --target host --replays 2 --n-sms 2 --protocol direct --ranks 4 "
                      "--experts 8 --top-k 6 --hidden 1024 --tokens 64 --json - --layout " +
                      layout)
                      .out);
    const json& traffic = report.at("sizes").at(0).at("traffic").at(0);
    return traffic.at("predicted_on_nics").at("dispatch_us").get<double>();
  };
  EXPECT_LT(predicted_us("per-rank"), predicted_us("ragged"));
}

// Masked rows of many tokens fit into memory if experts have room for as many as come.
TEST_F(CliRun, BenchTimesMaskedRowsWithLessMemory) {
  const std::string masked =
      "bench ep --target host --replays 2 --n-sms 2 --protocol direct --mode fused --ranks 2 --experts 4 "
      "--top-k 2 --hidden 64 --tokens 16 --layout masked --count-experts --json - ";
  const auto memory_with = [&](const std::string& options) {
    const json report = read_json(run(masked + options).out);
    EXPECT_EQ(report.at("verified"), true) << options;
    return report.at("sizes").at(0).at("traffic").at(0).at("memory_per_rank").get<double>();
  };
  EXPECT_LT(memory_with("--max-rows-per-expert 24"), memory_with(""));
  EXPECT_NE(run(masked + "--max-rows-per-expert 2").out.find("has room for"), std::string::npos);
  expect_refused("bench ep --target host --max-rows-per-expert 4 --tokens 1",
                 {"max_rows_per_expert is 4", "--layout is ragged"});
}

}  // namespace
}  // namespace switchyard
