#include "bench_processes.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands/merged_report.hpp"
#include "files/json_object.hpp"

namespace switchyard::tools {
namespace {

using Json = nlohmann::json;

// The times of one phase by rank, each with the same number of replays.
SpanSamples last_rank_of_each_replay(const std::vector<Json>& reports, size_t size_idx, size_t time_idx) {
  SpanSamples samples;
  for (const Json& report : reports) {
    const Json& time = report.at("sizes").at(size_idx).at("times").at(time_idx);
    const auto of_rank = time.at("us").get<std::vector<double>>();
    samples.name = time.at("phase").get<std::string>();
    if (samples.microseconds.empty()) samples.microseconds = of_rank;
    for (size_t i = 0; i < of_rank.size(); ++i)
      samples.microseconds.at(i) = std::min(samples.microseconds[i], of_rank[i]);
  }
  return samples;
}

void merge(const std::vector<Json>& reports, BenchReport& report) {
  for (const Json& of_rank : reports) {
    report.join_ms = std::max(report.join_ms.value_or(0), of_rank.at("join_ms").get<double>());
    for (size_t size_idx = 0; size_idx < report.sizes.size(); ++size_idx) {
      const auto difference = of_rank.at("sizes").at(size_idx).at("first_difference").get<std::string>();
      if (report.sizes[size_idx].first_difference.empty() && !difference.empty())
        report.sizes[size_idx].first_difference = "process transport: " + difference;
    }
  }
  for (size_t size_idx = 0; size_idx < report.sizes.size(); ++size_idx) {
    SizeResult& size = report.sizes[size_idx];
    // Both transports time the same phases in the same order, or have skipped the size.
    const size_t num_times = reports.front().at("sizes").at(size_idx).at("times").size();
    for (size_t i = 0; i < std::min(num_times, size.times.size()); ++i) {
      const SpanSamples samples = last_rank_of_each_replay(reports, size_idx, i);
      if (samples.name != size.times[i].phase)
        throw std::runtime_error(samples.name + " was timed in place of " + size.times[i].phase);
      size.process_times.push_back(samples.summarize(size.times[i].bytes));
    }
  }
}

}  // namespace

std::string to_rank_json(const BenchReport& report) {
  std::vector<JsonObject> sizes;
  for (const SizeResult& size : report.sizes) {
    std::vector<JsonObject> times;
    for (const PhaseTime& time : size.times) {
      JsonObject json;
      json.add("phase", time.phase).add("us", time.of_replay);
      times.push_back(std::move(json));
    }
    JsonObject json;
    json.add("first_difference", size.first_difference).add("times", std::move(times));
    sizes.push_back(std::move(json));
  }
  JsonObject json;
  json.add("join_ms", report.join_ms.value_or(0)).add("sizes", std::move(sizes));
  return json.to_text();
}

Result<ExitCode> merge_bench_outcomes(const std::vector<RankOutcome>& outcomes, BenchReport& report) {
  const ExitCode code = print_errors(outcomes);
  if (code > kNotVerified) return code;
  try {
    std::vector<Json> reports;
    for (const RankOutcome& outcome : outcomes) reports.push_back(Json::parse(outcome.output));
    merge(reports, report);
  } catch (const std::exception& error) {
    return internal_error("the report of a rank cannot be read: %s", error.what());
  }
  return code;
}

}  // namespace switchyard::tools
