// What `switchyard run --trace` writes: the run as a trace in Chrome's JSON format, for Perfetto and
// chrome://tracing. A process per rank, in it a row per block and one for the rank's phases.
#pragma once

#include <string>
#include <vector>

#include "files/output.hpp"
#include "workload/layer_run.hpp"

namespace switchyard::tools {

struct RunTrace {
  struct Phase {
    int step_idx;
    TimedPhase time;
  };

  Target target = Target::kHost;
  std::string device;
  std::vector<Phase> phases;
  int first_rank = 0;            // of those in `ranks` and `phases`
  std::vector<RankTrace> ranks;  // of this process
  uint64_t num_dropped_phases = 0;

  // Events that did not fit.
  uint64_t num_dropped() const;
};

std::string to_json(const RunTrace& trace);

// The events kept of each block, and of the host's phases: the first ones.
inline constexpr uint32_t kMaxTraceEvents = 8192;
// Writes it, and has `command` say on stderr what did not fit.
Status write_trace(const char* command, const OutputName& output, const RunTrace& trace);

}  // namespace switchyard::tools
