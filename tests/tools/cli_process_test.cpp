// The command with a process for every rank.
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_json;

class CliProcess : public testing_support::CliTest {
 protected:
  const std::string shape_ =
      "run --target host --ranks 3 --experts 6 --top-k 2 --hidden 64 --expert-width 16 --tokens 5 ";
};

TEST_F(CliProcess, ShowsOneTableOfAllRanks) {
  const Outcome outcome = run(shape_ + "--transport process --p2p-world-size 1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"transport process", "  0        5", "  2        5", "verified"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  const json local = read_json(run(shape_ + "--json -").out);
  const json report = read_json(run(shape_ + "--transport process --json -").out);
  EXPECT_EQ(report.at("verified"), true);
  for (const char* field : {"rows_per_rank", "bytes_moved", "traffic", "protocol", "max_abs_error"})
    EXPECT_EQ(report.at(field), local.at(field)) << field;
}

TEST_F(CliProcess, ARankThatDiesIsNamedByTheOthers) {
  const Outcome outcome = run(shape_ + "--transport process --kill 1@combine_wait");
  EXPECT_EQ(outcome.exit_code, 3);
  for (const char* text : {"rank 0: switchyard run: rank 1 has ended", "rank 1: ended by signal 9",
                           "rank 2: switchyard run: rank 1 has ended"})
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << "\n" << outcome.err;
}

TEST_F(CliProcess, WrongOptionsAreRefusedOnce) {
  expect_refused(shape_ + "--transport process --top-k 33", {"--top-k"});
  expect_refused(shape_ + "--rank 1", {"--rank, --rendezvous"});
  expect_refused(shape_ + "--rank 3 --rendezvous unix:@x", {"--rank: 3 must be below --ranks (3)"});
  expect_refused(shape_ + "--transport process --trace t.json", {"--trace"});
}

}  // namespace
}  // namespace switchyard
