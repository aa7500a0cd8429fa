// What `switchyard run --trace` writes: the run as a trace in Chrome's JSON format, for Perfetto and
// chrome://tracing. A row per rank and block, and one for what the host did.
#pragma once

#include <string>
#include <vector>

#include "moe_layer.hpp"

namespace switchyard::tools {

struct RunTrace {
  // A phase of a step, as the host saw it. Times are of std::chrono::steady_clock, which is the emulator's
  // clock too.
  struct HostPhase {
    int step_idx;
    TimedPhase time;
  };

  Target target = Target::kHost;
  std::string device;
  std::vector<HostPhase> phases;
  std::vector<RankTrace> ranks;
  uint64_t num_dropped_phases = 0;

  // Events that did not fit.
  uint64_t num_dropped() const;
};

Status write_trace(const std::string& path, const RunTrace& trace);

}  // namespace switchyard::tools
