// What `bench attention`, `bench matmul` and `bench layer` share: options, the report of cases that are timed
// one by one by graph replay, each verified, and the way from the options to the report.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/replay.hpp"
#include "commands/options.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "report/progress.hpp"
#include "switchyard/world.hpp"

namespace switchyard::tools {

template <typename BenchResult>
struct ReplayReport {
  Target target = Target::kHost;
  std::string device;
  int num_replays = 0;
  std::vector<BenchResult> results;

  bool verified() const {
    return std::all_of(results.begin(), results.end(),
                       [](const BenchResult& result) { return result.is_verified(); });
  }
};

struct ReplayOptions {
  std::string target = "auto";
  int num_replays = 0;
  uint64_t seed = 1;
  std::string json;

  bool prints_table() const { return json != "-"; }
};

// Writes down what the world is, and how often a graph is replayed.
template <typename BenchResult>
void begin_report(const World& world, const ReplayOptions& options, ReplayReport<BenchResult>& report) {
  report.target = world.target();
  report.device = world.rank(0).device_name();
  report.num_replays = options.num_replays;
}

// Adds the result of bench.time() for every case; `label_of` names a case for the progress line.
template <typename Bench, typename Case, typename BenchResult, typename Label>
Status time_each(Bench& bench, const std::vector<Case>& cases, const Label& label_of, Progress& progress,
                 ReplayReport<BenchResult>& report) {
  for (const Case& bench_case : cases) {
    progress.begin(label_of(bench_case));
    Result<BenchResult> result = bench.time(bench_case, report.num_replays);
    if (!result.ok()) return result.status();
    report.results.push_back(std::move(result).value());
  }
  return Status();
}

// Times every case, on a world of one rank, with a Bench that is made for all of them; `prepare` sees the
// Bench first, and `label_of` names a case for the progress line.
template <typename Bench, typename Case, typename BenchResult, typename Label, typename Prepare>
Status time_cases(const ReplayOptions& options, const std::vector<Case>& cases, const Label& label_of,
                  const Prepare& prepare, ReplayReport<BenchResult>& report) {
  Progress progress(1 + static_cast<int>(cases.size()));
  progress.begin("preparing");
  Result<std::unique_ptr<World>> world = World::create({.target = target_choice(options.target)});
  if (!world.ok()) return world.status();
  begin_report(*world.value(), options, report);
  Result<std::unique_ptr<Bench>> bench = Bench::create(*world.value(), cases, options.seed);
  if (!bench.ok()) return bench.status();
  SWITCHYARD_RETURN_IF_ERROR(prepare(*bench.value()));
  return time_each(*bench.value(), cases, label_of, progress, report);
}

// Ends a line of a table, and says on the next what is wrong with an output.
inline void end_table_line(const std::string& first_bad) {
  if (first_bad.empty())
    std::printf("\n");
  else
    std::printf("   NOT VERIFIED\n          %s\n", first_bad.c_str());
}

inline void add_timing(JsonObject& json, const Timing& timing) {
  json.add("median_us", timing.median_us).add("min_us", timing.min_us).add("p95_us", timing.p95_us);
}

// The head of the JSON of a run.
template <typename BenchResult>
JsonObject json_head(const ReplayReport<BenchResult>& report) {
  JsonObject json;
  json.add("verified", report.verified())
      .add("target", to_string(report.target))
      .add("device", report.device)
      .add("replays", report.num_replays);
  return json;
}

// Measures and reports. finish_options(), measure(), print_table() and to_json() are those of the benchmark
// whose options these are.
template <typename Report, typename Options>
Result<ExitCode> measure_and_report(Options& options) {
  Report report;
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options));
  SWITCHYARD_RETURN_IF_ERROR(measure(options, report));
  if (options.prints_table()) print_table(options, report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, to_json(options, report)));
  return report.verified() ? kVerified : kNotVerified;
}

// Adds the options that all of them have, and the work.
template <typename Report, typename Options>
void finish_replay_command(Command& command, const std::shared_ptr<Options>& options,
                           const char* default_replays) {
  command
      .add_number("--replays", options->num_replays, 1, 100000,
                  std::string("Replays of each graph; their median counts ") + default_replays)
      .hide_default();
  command.add_seed("--seed", options->seed, "All numbers follow from it");
  add_json_option(command, options->json);
  command.set_work([options] { return measure_and_report<Report>(*options); });
}

}  // namespace switchyard::tools
