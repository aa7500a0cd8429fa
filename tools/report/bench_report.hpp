// The results of `switchyard bench ep`, for people (a table, a plot) and for programs (JSON).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/ep_bench.hpp"
#include "benchmarks/limit_bench.hpp"
#include "workload/plan/cluster_plan.hpp"

namespace switchyard::tools {

// What leaves the ranks in a step of the protocol, and what memory it takes.
struct ProtocolTraffic {
  Protocol protocol;
  reference::StepTraffic traffic;
  uint64_t memory_per_rank = 0;  // bytes
  // What `switchyard plan` predicts of it, with a GPU for each rank: all on one node, or each on its own.
  std::optional<StepPlan> on_links, on_nics;
};

// A phase by a transport between processes, of all of them together.
struct ProcessTiming : Timing {
  // Of the whole step, if the processes share a clock; medians. How long after the first process the last one
  // began, and from then until the last has ended, with the launches of two kernels that look at the clock.
  std::optional<double> start_skew_us, from_last_start_us;
};

struct SizeResult {
  int tokens_per_rank;
  std::string why_skipped;  // empty: it was measured
  int p2p_world_size = 0;   // as it was taken
  int num_sets = 0;
  uint64_t exchange_bytes_per_rank = 0;
  std::optional<Limits> limits;
  std::vector<ProtocolTraffic> traffic;
  std::vector<PhaseTime> times;
  std::vector<ProcessTiming> process_times;  // the same phases by `BenchReport::transport`, or none
  std::vector<RepeatCheck> repeats;
  std::string first_difference;  // empty: every output was right

  // The time of dispatch, of combine or of the whole step as a multiple of its limit. The halves of a split
  // dispatch or combine have no limit.
  std::optional<double> over_limit(const PhaseTime& time) const;
};

struct BenchReport {
  Target target = Target::kHost;
  std::string device;
  Workload workload;  // the shape; tokens are those of each size
  std::string routing;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  int n_sms = 0;
  int p2p_world_size = 0;
  RowLayout row_layout = RowLayout::kRagged;
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  int row_alignment = 1;
  int max_rows_per_expert = 0;  // masked; 0: all that can come
  int num_replays = 0;
  uint64_t lead_us = 0;
  CopyBandwidth copy{};
  // Of the ranks that are in processes of their own, "process" or "shmem"; empty: all are in this one. The
  // times of one process for all are beside it, unless the ranks are on several machines.
  std::string transport;
  int num_machines = 1;
  double join_ms = 0;  // until all processes had joined
  std::vector<SizeResult> sizes;

  bool has_both_transports() const;
  bool anything_ran() const;
  bool verified() const;
  // 0: the copy bandwidth was not measured.
  double fraction_of_copy(const Timing& time) const {
    return copy.bytes_copied == 0 ? 0 : time.bytes_per_second() / copy.bytes_per_second;
  }
};

void print_table(const BenchReport& report);
std::string to_json(const BenchReport& report);
// Draws two panels over tokens per rank: time, and bandwidth as a share of the copy bandwidth.
std::string to_svg(const BenchReport& report);

}  // namespace switchyard::tools
