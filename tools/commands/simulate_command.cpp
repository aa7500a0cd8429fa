// `switchyard simulate`: whole multi-rank steps in the emulator's simulated mode, seed after seed.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>

#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "options.hpp"
#include "reference/all_cores.hpp"
#include "report/progress.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "workload/simulation.hpp"

namespace switchyard::tools {
namespace {

struct SimulateOptions {
  uint64_t num_seeds = 1000;
  uint64_t first_seed = 1;
  ScenarioSpace space;
  std::string faults = "none";
  uint64_t replay = 0;
  std::string json;

  bool prints_text() const { return json != "-"; }
};

constexpr SimulatedFault kAllFaults[] = {SimulatedFault::kShortStall, SimulatedFault::kLongStall,
                                         SimulatedFault::kKill, SimulatedFault::kBadId,
                                         SimulatedFault::kOverflow};

Status parse_faults(const std::string& text, std::vector<SimulatedFault>& faults) {
  if (text == "none") return Status();
  if (!kChecked) return invalid_argument("--faults: this build is unchecked: its kernels find none");
  if (text == "all") {
    faults.assign(std::begin(kAllFaults), std::end(kAllFaults));
    return Status();
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const auto fault = std::find_if(std::begin(kAllFaults), std::end(kAllFaults),
                                    [&](SimulatedFault candidate) { return name == to_string(candidate); });
    if (fault == std::end(kAllFaults))
      return invalid_argument(
          "--faults: '%s' must be none, all, or a list of short-stall, long-stall, kill, bad-id, overflow",
          name.c_str());
    faults.push_back(*fault);
    begin = end + 1;
  }
  return Status();
}

std::string replay_command(const SimulateOptions& options, uint64_t seed) {
  std::string ranks;
  for (const int count : options.space.rank_counts)
    ranks += (ranks.empty() ? "" : ",") + std::to_string(count);
  return "switchyard simulate --protocol " + std::string(to_string(options.space.protocol)) + " --ranks " +
         ranks + " --format " + name_of(options.space.format) + " --combine-format " +
         name_of(options.space.combine_format) + " --faults " + options.faults + " --replay " +
         std::to_string(seed);
}

void print_failure(const SimulateOptions& options, const Scenario& scenario, const SimulationResult& result) {
  std::printf("seed %llu FAILED: %s\n  %s\n", static_cast<unsigned long long>(scenario.seed),
              result.difference.c_str(), scenario.describe().c_str());
  for (size_t rank = 0; rank < result.events.size(); ++rank)
    std::printf("  last events of rank %zu:\n%s", rank, result.events[rank].c_str());
  std::printf("  replay it with: %s\n", replay_command(options, scenario.seed).c_str());
}

// What the JSON report says of a seed that was run alone, or failed.
JsonObject report_of(const Scenario& scenario, const SimulationResult& result) {
  JsonObject json;
  json.add("seed", scenario.seed)
      .add("scenario", scenario.describe())
      .add("verified", result.difference.empty())
      .add("difference", result.difference)
      .add("trace_hash", std::to_string(result.trace_hash));
  return json;
}

Result<ExitCode> write_json(const SimulateOptions& options, const JsonObject& json, ExitCode code) {
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", options.json}, json.to_text()));
  return code;
}

void print_replay(const Scenario& scenario, const SimulationResult& result, const SimulationResult& again) {
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(scenario.seed), scenario.describe().c_str());
  for (size_t rank = 0; rank < result.events.size(); ++rank)
    std::printf("last events of rank %zu:\n%s", rank, result.events[rank].c_str());
  std::printf("trace hash %016llx, replayed %016llx\n", static_cast<unsigned long long>(result.trace_hash),
              static_cast<unsigned long long>(again.trace_hash));
  if (result.trace_hash != again.trace_hash)
    std::printf("NOT REPLAYED: the two runs differ\n");
  else
    std::printf("%s\n", result.difference.empty() ? "verified" : ("FAILED: " + result.difference).c_str());
}

Result<ExitCode> replay(const SimulateOptions& options) {
  const Scenario scenario = draw_scenario(options.replay, options.space);
  const SimulationResult result = simulate(scenario);
  const SimulationResult again = simulate(scenario);
  if (options.prints_text()) print_replay(scenario, result, again);
  const bool is_replayed = result.trace_hash == again.trace_hash;
  JsonObject json = report_of(scenario, result);
  json.add("replayed", is_replayed);
  return write_json(options, json, is_replayed && result.difference.empty() ? kVerified : kNotVerified);
}

// Runs all seeds, shared among the cores. Each has a world of its own.
Result<ExitCode> run_seeds(const SimulateOptions& options) {
  Progress progress(static_cast<int>(options.num_seeds));
  std::atomic<uint64_t> next = 0, num_failed = 0;
  std::vector<JsonObject> failures;  // the first ones
  std::mutex mutex;
  const auto worker = [&] {
    for (uint64_t i = next++; i < options.num_seeds; i = next++) {
      const Scenario scenario = draw_scenario(options.first_seed + i, options.space);
      const SimulationResult result = simulate(scenario);
      std::lock_guard lock(mutex);
      progress.begin("seed " + std::to_string(scenario.seed) + ", " + std::to_string(num_failed) + " failed");
      if (result.difference.empty()) continue;
      progress.clear();
      if (num_failed++ >= 5) continue;
      if (options.prints_text()) print_failure(options, scenario, result);
      failures.push_back(report_of(scenario, result));
    }
  };
  reference::on_all_cores(worker);
  progress.clear();
  if (options.prints_text())
    std::printf("%llu seeds, faults %s: %llu right, %llu wrong\n",
                static_cast<unsigned long long>(options.num_seeds), options.faults.c_str(),
                static_cast<unsigned long long>(options.num_seeds - num_failed),
                static_cast<unsigned long long>(num_failed.load()));
  JsonObject json;
  json.add("verified", num_failed == 0)
      .add("seeds", options.num_seeds)
      .add("first_seed", options.first_seed)
      .add("format", name_of(options.space.format))
      .add("combine_format", name_of(options.space.combine_format))
      .add("faults", options.faults)
      .add("right", options.num_seeds - num_failed)
      .add("wrong", num_failed.load())
      .add("first_failures", std::move(failures));
  return write_json(options, json, num_failed == 0 ? kVerified : kNotVerified);
}

}  // namespace

void add_simulate_command(CommandLine& line) {
  Command command = line.add_command(
      "simulate", "Run steps in random interleavings on a weak memory, with faults, and verify each");
  auto options = std::make_shared<SimulateOptions>();
  command.add_number("--seeds", options->num_seeds, 1, 1000000000, "How many seeds");
  command.add_seed("--first-seed", options->first_seed, "The first of them");
  command.add_list("--ranks", options->space.rank_counts, 1, 8, "Numbers of ranks to draw from")
      .show_default("2,3,4");
  add_protocol_option(command, options->space.protocol, "draws one by seed");
  add_format_option(command, options->space.format);
  add_combine_format_option(command, options->space.combine_format);
  command.add_text(
      "--faults", options->faults,
      "none, all, or a list of short-stall, long-stall, kill, bad-id, overflow: each seed draws one");
  const Option replay_option =
      command.add_seed("--replay", options->replay, "Run this seed alone, twice, and show its last events")
          .hide_default();
  add_json_option(command, options->json);
  command.set_work([=]() -> Result<ExitCode> {
    SWITCHYARD_RETURN_IF_ERROR(parse_faults(options->faults, options->space.faults));
    SWITCHYARD_RETURN_IF_ERROR(check_output_names({{"--json", options->json}}));
    return replay_option.is_given() ? replay(*options) : run_seeds(*options);
  });
}

}  // namespace switchyard::tools
