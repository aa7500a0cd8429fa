// Traces that `switchyard run --trace` writes, read as a viewer reads them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_file;
using testing_support::read_json;

class CliTrace : public testing_support::CliTest {};

struct TraceRow {
  std::string process;
  std::string thread;
  std::vector<json> slices;
};

// Reads a trace, by (pid, tid), and checks what every viewer wants of it.
void read_trace(const std::filesystem::path& path, json& trace,
                std::map<std::pair<double, double>, TraceRow>& rows) {
  trace = read_json(read_file(path));
  std::map<double, std::string> processes;
  for (const json& event : trace.at("traceEvents")) {
    ASSERT_GT(event.at("pid"), 0);
    ASSERT_GT(event.at("tid"), 0);
    TraceRow& row = rows[{event.at("pid").get<double>(), event.at("tid").get<double>()}];
    if (event.at("name") == "process_name")
      processes[event.at("pid").get<double>()] = event.at("args").at("name").get<std::string>();
    if (event.at("name") == "thread_name") row.thread = event.at("args").at("name").get<std::string>();
    if (event.at("ph") == "X") row.slices.push_back(event);
  }
  for (auto& [place, row] : rows) {
    row.process = processes[place.first];
    std::vector<double> open_ends;
    double last_begin = 0;
    for (const json& slice : row.slices) {
      // Nanoseconds, so that sums are exact.
      const double begin = std::round(slice.at("ts").get<double>() * 1e3),
                   end = begin + std::round(slice.at("dur").get<double>() * 1e3);
      EXPECT_GE(begin, last_begin) << row.process << ", " << row.thread;
      last_begin = begin;
      while (!open_ends.empty() && open_ends.back() <= begin) open_ends.pop_back();
      if (!open_ends.empty()) {
        EXPECT_LE(end, open_ends.back()) << row.process << ", " << row.thread << ", at " << begin << " ns";
      }
      open_ends.push_back(end);
    }
  }
}

const std::string kThreeRanks =
    "run --target host --protocol slotted --ranks 3 --experts 6 --top-k 2 --hidden 32 --expert-width 8 "
    "--tokens 5 ";

TEST_F(CliTrace, ATraceHasARowPerRankAndBlockAndItsSlicesNest) {
  for (const std::string mode : {"split", "fused"}) {
    const std::filesystem::path path = folder / (mode + ".json");
    const Outcome outcome = run(kThreeRanks + "--n-sms 2 --mode " + mode + " --trace " + path.string());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    json trace;
    std::map<std::pair<double, double>, TraceRow> rows;
    read_trace(path, trace, rows);
    EXPECT_EQ(trace.at("displayTimeUnit"), "ns");
    EXPECT_EQ(trace.at("otherData").at("target"), "host");
    EXPECT_TRUE(trace.at("otherData").at("dropped_events").is_number());
    EXPECT_EQ(trace.at("otherData").at("dropped_events"), 0);
    std::map<std::pair<std::string, std::string>, std::string> slices_of;
    for (const auto& [place, row] : rows)
      for (const json& slice : row.slices)
        slices_of[{row.process, row.thread}] +=
            slice.at("cat").get<std::string>() + "/" + slice.at("name").get<std::string>() + " ";
    EXPECT_EQ(slices_of.size(), 9u) << "three ranks, each of two blocks and a row of phases";
    const auto expect_slice = [&](const std::string& process, const std::string& thread,
                                  const std::string& name) {
      const std::string slices = slices_of[{process, thread}];
      EXPECT_NE((" " + slices).find(" " + name + " "), std::string::npos)
          << name << " of " << process << ", " << thread << ": " << slices;
    };
    for (const std::string rank : {"rank 0", "rank 1", "rank 2"}) {
      expect_slice(rank, "block 0", "dispatch_async/watch");
      expect_slice(rank, "block 0", "dispatch_wait/publish_offsets");
      expect_slice(rank, "block 1", "dispatch_async/send");
      for (const std::string block : {"block 0", "block 1"})
        for (const char* name : {"dispatch_wait/collect_counts", "dispatch_wait/decode",
                                 "combine_async/send_rows", "combine_wait/reduce"})
          expect_slice(rank, block, name);
      for (const char* name : {"phase/route", "phase/gate_up", "phase/down"})
        expect_slice(rank, "phases", name);
      expect_slice(rank, "phases", mode == "fused" ? "phase/combine" : "phase/combine_wait");
    }
  }
}

TEST_F(CliTrace, ALayersStepIsTracedOnceItHasBeenTimed) {
  const std::filesystem::path path = folder / "layer.json";
  const std::string layer =
      "bench layer --target host --ranks 2 --hidden 128 --experts 4 --expert-width 64 --top-k 2 --n-sms 2 "
      "--matmul-blocks 2 --replays 1 ";
  const auto slices_of = [&](const std::string& options) {
    const Outcome outcome = run(layer + "--tokens 9 --trace " + path.string() + " " + options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    json trace;
    std::map<std::pair<double, double>, TraceRow> rows;
    read_trace(path, trace, rows);
    std::map<std::string, std::string> slices;  // of rank 1
    for (const auto& [place, row] : rows)
      for (const json& slice : row.slices)
        if (row.process == "rank 1") slices[row.thread] += " " + slice.at("name").get<std::string>();
    return slices;
  };
  auto slices = slices_of("--protocol direct");
  EXPECT_EQ(slices.size(), 3u) << "a row of phases and two blocks";
  EXPECT_EQ(slices["phases"], " route dispatch gate_up down combine");
  EXPECT_NE(slices["block 1"].find(" send"), std::string::npos) << slices["block 1"];
  EXPECT_NE(slices["block 1"].find(" reduce"), std::string::npos) << slices["block 1"];
  // A time that is taken between down and combine would keep combine from starting early.
  slices = slices_of("--combine-start with-experts");
  EXPECT_EQ(slices["phases"], " step");
  EXPECT_NE(slices["block 1"].find(" reduce"), std::string::npos) << slices["block 1"];
  expect_refused(layer + "--tokens 3,9 --trace " + path.string(), {"--trace", "--tokens must be one number"});
  expect_refused(layer + "--tokens 9 --trace - --json", {"--trace", "--json"});
  EXPECT_EQ(run(layer + "--tokens 9 --trace -").out.find("{\"displayTimeUnit\""), 0u);
}

TEST_F(CliTrace, ATraceShowsWhoWasLate) {
  const std::filesystem::path path = folder / "trace.json";
  const auto longest_wait = [&] {
    json trace, longest = json::object();
    std::map<std::pair<double, double>, TraceRow> rows;
    read_trace(path, trace, rows);
    for (const auto& [place, row] : rows)
      for (const json& slice : row.slices)
        if (slice.at("name").get<std::string>().rfind("wait", 0) == 0 &&
            slice.at("dur").get<double>() > longest.value("dur", 0.0))
          longest = slice;
    return longest;
  };
  EXPECT_EQ(
      run(kThreeRanks + "--mode fused --steps 1 --stall 2@dispatch:300 --trace " + path.string()).exit_code,
      0);
  const json stalled = longest_wait();
  EXPECT_EQ(stalled.at("name"), "wait for rank 2");
  EXPECT_EQ(stalled.at("cat"), "dispatch_wait");
  EXPECT_EQ(stalled.at("args").at("late_rank"), 2);
  EXPECT_EQ(stalled.at("args").at("outcome"), "arrived");
  EXPECT_GT(stalled.at("dur"), 100e3);

  EXPECT_EQ(run(kThreeRanks + "--deadline-ms 1000 --kill 1@combine_async --trace " + path.string()).exit_code,
            3);
  const json killed = longest_wait();
  EXPECT_EQ(killed.at("cat"), "combine_wait");
  EXPECT_EQ(killed.at("args").at("late_rank"), 1);
  EXPECT_GT(killed.at("dur"), 500e3);
  EXPECT_NE(read_file(path).find("\"wait for rank 1: timed out\""), std::string::npos);
}

TEST_F(CliTrace, ATraceSaysHowManyEventsDidNotFit) {
  const std::filesystem::path path = folder / "trace.json";
  const Outcome outcome = run(
      "run --target host --ranks 1 --experts 1 --top-k 1 --hidden 8 --expert-width 8 --tokens 1 --n-sms 1 "
      "--steps 1100 --trace " +
      path.string());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  json trace;
  std::map<std::pair<double, double>, TraceRow> rows;
  read_trace(path, trace, rows);
  const int64_t num_dropped = static_cast<int64_t>(trace.at("otherData").at("dropped_events").get<double>());
  EXPECT_GT(num_dropped, 1000);
  EXPECT_NE(outcome.err.find("--trace: " + std::to_string(num_dropped) + " events did not fit"),
            std::string::npos)
      << outcome.err;
}

TEST_F(CliTrace, WithoutAllToAllATraceShowsTheAllReduce) {
  const std::filesystem::path path = folder / "trace.json";
  ASSERT_EQ(run(kThreeRanks + "--n-sms 2 --steps 1 --skip-a2a --trace " + path.string()).exit_code, 0);
  json trace;
  std::map<std::pair<double, double>, TraceRow> rows;
  read_trace(path, trace, rows);
  int num_reducing_blocks = 0;
  for (const auto& [place, row] : rows)
    for (const json& slice : row.slices)
      num_reducing_blocks += slice.at("cat") == "all_reduce" && slice.at("name") == "reduce";
  EXPECT_EQ(num_reducing_blocks, 3 * 2);
}

}  // namespace
}  // namespace switchyard
