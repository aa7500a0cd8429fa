#include "bench_processes.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "commands/merged_report.hpp"
#include "files/json_object.hpp"
#include "switchyard/detail/device/file_descriptor.hpp"

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

double median_of(std::vector<double> microseconds) {
  return SpanSamples{"", std::move(microseconds)}.summarize(0).median_us;
}

double microseconds_between(uint64_t begin_ns, uint64_t end_ns) {
  return (static_cast<double>(end_ns) - static_cast<double>(begin_ns)) * 1e-3;
}

// What the stamps of all processes say of when they began and ended.
void add_starts(const std::vector<Json>& reports, size_t size_idx, size_t time_idx, ProcessTiming& timing) {
  std::vector<uint64_t> first_begin, last_begin, last_end;
  const auto collect = [](const std::vector<uint64_t>& of_rank, auto pick, std::vector<uint64_t>& of_all) {
    if (of_all.empty()) of_all = of_rank;
    for (size_t i = 0; i < of_rank.size(); ++i) of_all.at(i) = pick(of_all[i], of_rank[i]);
  };
  const auto earlier = [](uint64_t a, uint64_t b) { return std::min(a, b); };
  const auto later = [](uint64_t a, uint64_t b) { return std::max(a, b); };
  for (const Json& report : reports) {
    const Json& time = report.at("sizes").at(size_idx).at("times").at(time_idx);
    const auto begin_ns = time.at("begin_ns").get<std::vector<uint64_t>>();
    if (begin_ns.empty()) return;
    collect(begin_ns, earlier, first_begin);
    collect(begin_ns, later, last_begin);
    collect(time.at("end_ns").get<std::vector<uint64_t>>(), later, last_end);
  }
  std::vector<double> skew, from_last_start;
  for (size_t i = 0; i < last_begin.size(); ++i) {
    skew.push_back(microseconds_between(first_begin[i], last_begin[i]));
    from_last_start.push_back(microseconds_between(last_begin[i], last_end.at(i)));
  }
  timing.start_skew_us = median_of(std::move(skew));
  timing.from_last_start_us = median_of(std::move(from_last_start));
}

void merge_size(const std::vector<Json>& reports, size_t size_idx, const BenchReport& report,
                SizeResult& size) {
  // Both transports time the same phases in the same order, or have skipped the size.
  const size_t num_times = reports.front().at("sizes").at(size_idx).at("times").size();
  for (size_t i = 0; i < std::min(num_times, size.times.size()); ++i) {
    PhaseTime& time = size.times[i];
    const SpanSamples samples = last_rank_of_each_replay(reports, size_idx, i);
    if (samples.name != time.phase)
      throw std::runtime_error(samples.name + " was timed in place of " + time.phase);
    ProcessTiming timing{samples.summarize(time.bytes), {}, {}};
    if (report.num_machines == 1) {
      add_starts(reports, size_idx, i, timing);
      size.process_times.push_back(timing);
    } else {
      static_cast<Timing&>(time) = timing;
    }
  }
}

void merge(const std::vector<Json>& reports, BenchReport& report) {
  for (const Json& of_rank : reports) {
    report.join_ms = std::max(report.join_ms, of_rank.at("join_ms").get<double>());
    for (size_t size_idx = 0; size_idx < report.sizes.size(); ++size_idx) {
      const auto difference = of_rank.at("sizes").at(size_idx).at("first_difference").get<std::string>();
      if (report.sizes[size_idx].first_difference.empty() && !difference.empty())
        report.sizes[size_idx].first_difference = report.transport + " transport: " + difference;
    }
  }
  for (size_t size_idx = 0; size_idx < report.sizes.size(); ++size_idx)
    merge_size(reports, size_idx, report, report.sizes[size_idx]);
}

}  // namespace

std::string to_rank_json(const BenchReport& report) {
  std::vector<JsonObject> sizes;
  for (const SizeResult& size : report.sizes) {
    std::vector<JsonObject> times;
    for (const PhaseTime& time : size.times) {
      JsonObject json;
      json.add("phase", time.phase)
          .add("us", time.of_replay)
          .add("begin_ns", time.stamps.begin_ns)
          .add("end_ns", time.stamps.end_ns);
      times.push_back(std::move(json));
    }
    JsonObject json;
    json.add("first_difference", size.first_difference).add("times", std::move(times));
    sizes.push_back(std::move(json));
  }
  JsonObject json;
  json.add("join_ms", report.join_ms).add("sizes", std::move(sizes));
  return json.to_line();
}

Result<int> num_machines_of(const World& world) {
  char name[256] = "";
  (void)gethostname(name, sizeof(name) - 1);
  const Result<std::vector<std::string>> names = gather_texts(world, name);
  if (!names.ok()) return names.status();
  return static_cast<int>(std::set<std::string>(names.value().begin(), names.value().end()).size());
}

Status merge_bench_reports(const std::vector<std::string>& rank_jsons, BenchReport& report) {
  try {
    std::vector<Json> reports;
    for (const std::string& text : rank_jsons) reports.push_back(Json::parse(text));
    if (reports.empty()) return internal_error("there is no report of a rank");
    merge(reports, report);
  } catch (const std::exception& error) {
    return internal_error("the report of a rank cannot be read: %s", error.what());
  }
  return Status();
}

Result<ExitCode> merge_bench_outcomes(const std::vector<RankOutcome>& outcomes, BenchReport& report) {
  const ExitCode code = print_errors(outcomes);
  if (code > kNotVerified) return code;
  std::vector<std::string> rank_jsons;
  for (const RankOutcome& outcome : outcomes) rank_jsons.push_back(outcome.output);
  SWITCHYARD_RETURN_IF_ERROR(merge_bench_reports(rank_jsons, report));
  return code;
}

Result<ExitCode> run_beside(std::vector<std::string> arguments, const std::vector<std::string>& rank_jsons) {
  const FileDescriptor file(memfd_create("switchyard-rank-reports", MFD_CLOEXEC));
  if (!file.is_open()) return no_file_descriptor("--transport shmem: memfd_create", errno);
  std::string lines;
  for (const std::string& json : rank_jsons) lines += json + "\n";
  for (size_t done = 0; done < lines.size();) {
    const ssize_t count = write(file.number(), lines.data() + done, lines.size() - done);
    if (count < 0 && errno != EINTR)
      return unavailable("--transport shmem: the reports of the ranks cannot be kept: %s",
                         std::strerror(errno));
    done += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  arguments.insert(arguments.end(), {"--rank-reports", "/proc/" + std::to_string(getpid()) + "/fd/" +
                                                           std::to_string(file.number())});
  const Result<std::vector<RankOutcome>> outcomes = run_processes({arguments});
  if (!outcomes.ok()) return outcomes.status();
  std::fputs(outcomes.value().front().output.c_str(), stdout);
  return print_errors(outcomes.value());
}

}  // namespace switchyard::tools
