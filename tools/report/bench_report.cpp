#include "bench_report.hpp"

#include <algorithm>
#include <cstdio>

#include "files/json_object.hpp"
#include "report/traffic_report.hpp"
#include "switchyard/detail/sync/wait_context.hpp"

namespace switchyard::tools {
namespace {

// With a GPU for each rank.
void print_prediction(const char* name, const std::optional<StepPlan>& plan) {
  if (!plan) return;
  const bool has_nics = plan->cluster.num_nodes() > 1;
  std::printf("  %-16s dispatch %.1f us, combine %.1f us, step %.1f us predicted (a rank per %s, %g GB/s)\n",
              name, plan->dispatch.us(), plan->combine.us(), plan->step_us, has_nics ? "node" : "GPU",
              has_nics ? plan->cluster.nic_gb_s : plan->cluster.link_gb_s);
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

class TimeTable {
 public:
  explicit TimeTable(const BenchReport& report) : report_(report) {
    std::printf(
        "  tokens/rank  protocol  mode   phase                  us          MB      %s   %% of copy   x "
        "limit",
        report.target == Target::kCuda ? "TB/s" : "GB/s");
    if (report.has_both_transports()) std::printf("  %7s us  x local", report.transport.c_str());
    std::printf("\n");
  }
  // `size`, `protocol` and `mode` are empty if they are the same as in the line above.
  void print_line(const std::string& size, const char* protocol, const char* mode, const std::string& phase,
                  const Timing& time, std::optional<double> over_limit,
                  const Timing* process_time = nullptr) const {
    std::printf("  %11s  %-8s  %-5s  %-14s %10.1f  %10.2f  %8.3f  %10.2f", size.c_str(), protocol, mode,
                phase.c_str(), time.median_us, static_cast<double>(time.bytes) / 1e6,
                time.bytes_per_second() / (report_.target == Target::kCuda ? 1e12 : 1e9),
                100 * report_.fraction_of_copy(time));
    if (over_limit) std::printf("  %8.2f", *over_limit);
    if (process_time != nullptr)
      std::printf("%*s  %10.1f  %7.2f", over_limit ? 0 : 10, "", process_time->median_us,
                  process_time->median_us / time.median_us);
    std::printf("\n");
  }

 private:
  const BenchReport& report_;
};

// Whether the processes began together: a rank that is early waits for the others.
void print_starts(const BenchReport& report) {
  for (const SizeResult& size : report.sizes)
    for (size_t i = 0; i < size.process_times.size(); ++i) {
      const ProcessTiming& process = size.process_times[i];
      if (!process.start_skew_us) continue;
      std::printf(
          "\n  %d tokens/rank, %s, %s: processes began within %.1f us; from the last start to the last end "
          "%.1f us",
          size.tokens_per_rank, to_string(size.times[i].protocol), to_string(size.times[i].mode),
          *process.start_skew_us, *process.from_last_start_us);
    }
  if (report.has_both_transports()) std::printf("\n");
}

void print_times(const BenchReport& report) {
  const TimeTable table(report);
  for (const SizeResult& size : report.sizes) {
    if (!size.why_skipped.empty()) {
      std::printf("  %11d  skipped: %s\n", size.tokens_per_rank, size.why_skipped.c_str());
      continue;
    }
    std::string label = std::to_string(size.tokens_per_rank);
    if (size.limits) {
      table.print_line(label, "limit", "", "scatter", size.limits->scatter, {});
      table.print_line("", "", "", "gather", size.limits->gather, {});
      label.clear();
    }
    for (size_t i = 0; i < size.times.size(); ++i) {
      const PhaseTime& time = size.times[i];
      const bool begins_protocol = i == 0 || size.times[i - 1].protocol != time.protocol;
      const bool begins_mode = begins_protocol || size.times[i - 1].mode != time.mode;
      table.print_line(i == 0 ? label : "", begins_protocol ? to_string(time.protocol) : "",
                       begins_mode ? to_string(time.mode) : "", time.phase, time, size.over_limit(time),
                       i < size.process_times.size() ? &size.process_times[i] : nullptr);
    }
  }
  print_starts(report);
  for (const SizeResult& size : report.sizes)
    for (const ProtocolTraffic& of_protocol : size.traffic) {
      std::printf("\n  %d tokens/rank, %s, %.2f MB of memory per rank\n", size.tokens_per_rank,
                  to_string(of_protocol.protocol), static_cast<double>(of_protocol.memory_per_rank) * 1e-6);
      print_traffic(of_protocol.traffic);
      print_prediction("on NVLink", of_protocol.on_links);
      print_prediction("on NICs", of_protocol.on_nics);
    }
}

JsonObject prediction_json(const StepPlan& plan) {
  JsonObject json;
  json.add("dispatch_us", plan.dispatch.us())
      .add("combine_us", plan.combine.us())
      .add("step_us", plan.step_us)
      .add("link_gb_s", plan.cluster.link_gb_s)
      .add("nic_gb_s", plan.cluster.nic_gb_s)
      .add("ranks_per_node", plan.cluster.ranks_per_node);
  return json;
}

void print_repeats(const BenchReport& report) {
  for (const SizeResult& size : report.sizes) {
    if (!size.why_skipped.empty())
      std::printf("  %d tokens/rank, skipped: %s\n", size.tokens_per_rank, size.why_skipped.c_str());
    for (const RepeatCheck& check : size.repeats)
      std::printf("  %d tokens/rank, %s, %s: %lld replays, %lld outputs hashed, %s (%s over %d sets)\n",
                  size.tokens_per_rank, to_string(check.protocol), to_string(check.mode),
                  static_cast<long long>(check.num_replays), static_cast<long long>(check.num_hashed),
                  check.num_different == 0 ? "all equal to the reference"
                                           : (std::to_string(check.num_different) + " DIFFERENT").c_str(),
                  hex(check.hash).c_str(), size.num_sets);
  }
}

JsonObject time_json(const BenchReport& report, const SizeResult& size, size_t time_idx) {
  const PhaseTime& time = size.times[time_idx];
  JsonObject json;
  json.add("tokens_per_rank", size.tokens_per_rank)
      .add("protocol", to_string(time.protocol))
      .add("mode", to_string(time.mode))
      .add("phase", time.phase)
      .add("us", time.median_us)
      .add("us_min", time.min_us)
      .add("us_p95", time.p95_us)
      .add("bytes", time.bytes)
      .add("bytes_per_second", time.bytes_per_second())
      .add("fraction_of_copy", report.fraction_of_copy(time));
  if (const std::optional<double> over_limit = size.over_limit(time)) json.add("over_limit", *over_limit);
  if (time_idx >= size.process_times.size()) return json;
  const ProcessTiming& process = size.process_times[time_idx];
  const std::string us = report.transport + "_us";
  json.add(us, process.median_us).add(us + "_min", process.min_us).add(us + "_p95", process.p95_us);
  if (process.start_skew_us) json.add("start_skew_us", *process.start_skew_us);
  if (process.from_last_start_us) json.add("from_last_start_us", *process.from_last_start_us);
  return json;
}

JsonObject repeat_json(const SizeResult& size, const RepeatCheck& check) {
  return std::move(JsonObject()
                       .add("tokens_per_rank", size.tokens_per_rank)
                       .add("protocol", to_string(check.protocol))
                       .add("mode", to_string(check.mode))
                       .add("replays", check.num_replays)
                       .add("hashed", check.num_hashed)
                       .add("different", check.num_different)
                       .add("hash", hex(check.hash)));
}

JsonObject size_json(const SizeResult& size) {
  JsonObject json;
  json.add("tokens_per_rank", size.tokens_per_rank);
  if (!size.why_skipped.empty()) return std::move(json.add("why_skipped", size.why_skipped));
  json.add("buffer_sets", size.num_sets).add("exchange_bytes_per_rank", size.exchange_bytes_per_rank);
  if (size.limits)
    json.add("scatter_limit_us", size.limits->scatter.median_us)
        .add("gather_limit_us", size.limits->gather.median_us)
        .add("limit_bytes", size.limits->scatter.bytes);
  std::vector<JsonObject> traffic;
  for (const ProtocolTraffic& of_protocol : size.traffic) {
    JsonObject entry;
    entry.add("protocol", to_string(of_protocol.protocol))
        .add("bytes", traffic_json(of_protocol.traffic))
        .add("memory_per_rank", of_protocol.memory_per_rank);
    if (of_protocol.on_links) entry.add("predicted_on_links", prediction_json(*of_protocol.on_links));
    if (of_protocol.on_nics) entry.add("predicted_on_nics", prediction_json(*of_protocol.on_nics));
    traffic.push_back(std::move(entry));
  }
  json.add("traffic", std::move(traffic));
  if (!size.first_difference.empty()) json.add("first_difference", size.first_difference);
  return json;
}

}  // namespace

std::optional<double> SizeResult::over_limit(const PhaseTime& time) const {
  if (!limits) return {};
  if (time.phase == "dispatch") return time.median_us / limits->scatter.median_us;
  if (time.phase == "combine") return time.median_us / limits->gather.median_us;
  if (time.phase == kWholeStep)
    return time.median_us / (limits->scatter.median_us + limits->gather.median_us);
  return {};
}

bool BenchReport::has_both_transports() const {
  return std::any_of(sizes.begin(), sizes.end(),
                     [](const SizeResult& size) { return !size.process_times.empty(); });
}

bool BenchReport::anything_ran() const {
  return std::any_of(sizes.begin(), sizes.end(),
                     [](const SizeResult& size) { return size.why_skipped.empty(); });
}

bool BenchReport::verified() const {
  return std::all_of(sizes.begin(), sizes.end(), [](const SizeResult& size) {
    return size.first_difference.empty() &&
           std::all_of(size.repeats.begin(), size.repeats.end(),
                       [](const RepeatCheck& check) { return check.num_different == 0; });
  });
}

void print_table(const BenchReport& report) {
  const Workload& workload = report.workload;
  const bool has_repeats = std::any_of(report.sizes.begin(), report.sizes.end(),
                                       [](const SizeResult& size) { return !size.repeats.empty(); });
  std::printf("Switchyard: dispatch and combine over %d rank%s, by graph replay\n\n", workload.n_ranks,
              workload.n_ranks == 1 ? "" : "s");
  std::printf("  target    %s: %s, %d blocks per rank\n", to_string(report.target), report.device.c_str(),
              report.n_sms);
  std::printf("  shape     hidden %d, top-%d, %d experts, %s routing, identity experts\n", workload.hidden,
              workload.top_k, workload.n_experts, report.routing.c_str());
  std::printf("  formats   %s there, %s back\n", to_string(report.format), to_string(report.combine_format));
  if (report.row_layout != RowLayout::kRagged || report.row_alignment != 1)
    std::printf("  rows      %s, aligned to %d\n", to_string(report.row_layout), report.row_alignment);
  if (report.max_rows_per_expert != 0)
    std::printf("  memory    for %d rows of each expert\n", report.max_rows_per_expert);
  if (report.row_delivery != RowDelivery::kAutomatic)
    std::printf("  delivery  by the %s\n", to_string(report.row_delivery));
  if (report.p2p_world_size != 0)
    std::printf("  groups    of %d rank%s; rows go over a wire between groups\n", report.p2p_world_size,
                report.p2p_world_size == 1 ? "" : "s");
  if (!report.transport.empty())
    std::printf("  transport %s%s, a process for every rank on %d machine%s, which joined in %.1f ms\n",
                report.has_both_transports() ? "local; and " : "", report.transport.c_str(),
                report.num_machines, report.num_machines == 1 ? "" : "s", report.join_ms);
  if (!kChecked) std::printf("  build     UNCHECKED: kernels without deadlines and fault checks\n");
  if (has_repeats) {
    std::printf("\n");
    print_repeats(report);
  } else {
    if (report.copy.bytes_copied != 0)
      std::printf("  copy      %.1f GB/s read and written, copies of %llu MiB\n",
                  report.copy.bytes_per_second / 1e9,
                  static_cast<unsigned long long>(report.copy.bytes_copied >> 20));
    std::printf(
        "  times     of all ranks together, median of %d replays, %llu us after each began; buffers take "
        "turns\n",
        report.num_replays, static_cast<unsigned long long>(report.lead_us));
    if (report.row_layout != RowLayout::kPerRank)
      std::printf(
          "  limits    bare kernels on as many blocks: dispatch is compared with scatter, combine with "
          "gather\n");
    std::printf("\n");
    print_times(report);
  }
  for (const SizeResult& size : report.sizes)
    if (!size.first_difference.empty())
      std::printf("\n  %d tokens/rank: %s\n", size.tokens_per_rank, size.first_difference.c_str());
  if (!report.anything_ran())
    std::printf("\nnothing was run: every size was skipped\n");
  else
    std::printf("\n%s\n", report.verified() ? "verified: every output of every set of buffers, bit for bit"
                                            : "NOT VERIFIED");
}

std::string to_json(const BenchReport& report) {
  std::vector<JsonObject> times, repeats, sizes;
  for (const SizeResult& size : report.sizes) {
    sizes.push_back(size_json(size));
    for (size_t i = 0; i < size.times.size(); ++i) times.push_back(time_json(report, size, i));
    for (const RepeatCheck& check : size.repeats) repeats.push_back(repeat_json(size, check));
  }
  const Workload& workload = report.workload;
  JsonObject json;
  json.add("verified", report.anything_ran() && report.verified())
      .add("target", to_string(report.target))
      .add("device", report.device)
      .add("checked", kChecked)
      .add("ranks", workload.n_ranks)
      .add("n_sms", report.n_sms)
      .add("p2p_world_size", report.p2p_world_size)
      .add("layout", to_string(report.row_layout))
      .add("delivery", to_string(report.row_delivery))
      .add("alignment", report.row_alignment)
      .add("max_rows_per_expert", report.max_rows_per_expert)
      .add("hidden", workload.hidden)
      .add("top_k", workload.top_k)
      .add("experts", workload.n_experts)
      .add("format", to_string(report.format))
      .add("combine_format", to_string(report.combine_format))
      .add("routing", report.routing)
      .add("seed", workload.seed);
  if (!report.transport.empty())
    json.add("transport", report.transport)
        .add("machines", report.num_machines)
        .add("join_ms", report.join_ms);
  if (!times.empty())
    json.add("replays", report.num_replays)
        .add("lead_us", report.lead_us)
        .add("copy_bytes_per_second", report.copy.bytes_per_second)
        .add("copy_bytes", report.copy.bytes_copied);
  return json.add("sizes", std::move(sizes))
      .add("times", std::move(times))
      .add("repeats", std::move(repeats))
      .to_text();
}

}  // namespace switchyard::tools
