// The command's groups of ranks, between which rows go over a wire, and the bytes that leave ranks and
// groups.
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_json;

class CliWire : public testing_support::CliTest {};

TEST_F(CliWire, RowsBetweenGroupsGoOverAWire) {
  const std::string shape =
      "run --target host --ranks 4 --experts 8 --top-k 2 --hidden 64 --expert-width 16 --tokens 5 ";
  for (const char* protocol : {"slotted", "direct"}) {
    const std::string command = shape + "--delivery sender --protocol " + protocol;
    const Outcome outcome = run(command + " --p2p-world-size 2");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("groups    of 2 ranks"), std::string::npos) << outcome.out;
    const json near = read_json(run(command + " --json -").out);
    const json wired = read_json(run(command + " --p2p-world-size 2 --json -").out);
    EXPECT_EQ(wired.at("verified"), true);
    EXPECT_EQ(wired.at("p2p_world_size"), 2);
    for (const char* phase : {"dispatch", "combine"}) {
      const json &of_near = near.at("traffic").at(phase), &of_wired = wired.at("traffic").at(phase);
      EXPECT_EQ(of_near.at("bytes_to_other_ranks"), of_wired.at("bytes_to_other_ranks"));
      EXPECT_EQ(of_near.at("bytes_to_other_groups"), json({0, 0, 0, 0}));
      for (size_t rank = 0; rank < 4; ++rank)
        EXPECT_LE(of_wired.at("bytes_to_other_groups").at(rank),
                  of_wired.at("bytes_to_other_ranks").at(rank));
      EXPECT_NE(of_wired.at("bytes_to_other_groups"), json({0, 0, 0, 0}));
    }
  }
  expect_refused(shape + "--p2p-world-size 3", {"--p2p-world-size: 3 must divide --ranks (4)"});
  expect_refused(shape + "--p2p-world-size 2 --skip-a2a",
                 {"--p2p-world-size: 2 must be 0 or --ranks (4) with --skip-a2a"});
  expect_refused(shape + "--p2p-world-size 513", {"--p2p-world-size", "0..512"});
}

TEST_F(CliWire, BenchOverAWireCountsWhatLeavesGroups) {
  const json report = read_json(
      run("bench ep --target host --ranks 2 --experts 4 --top-k 2 --hidden 64 --tokens 1,3 --replays 2 "
          "--n-sms 2 --protocol both --p2p-world-size 1 --json -")
          .out);
  EXPECT_EQ(report.at("verified"), true);
  EXPECT_EQ(report.at("p2p_world_size"), 1);
  for (const json& size : report.at("sizes")) {
    ASSERT_EQ(size.at("traffic").size(), 2u);
    for (const json& traffic : size.at("traffic"))
      for (const char* phase : {"dispatch", "combine"})
        EXPECT_EQ(traffic.at("bytes").at(phase).at("bytes_to_other_groups"),
                  traffic.at("bytes").at(phase).at("bytes_to_other_ranks"));
  }
  expect_refused("bench ep --target host --ranks 4 --p2p-world-size 3",
                 {"--p2p-world-size: 3 must divide --ranks (4)"});
}

}  // namespace
}  // namespace switchyard
