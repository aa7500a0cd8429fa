// Timing by graph replay: graphs of the same work over different buffers take turns, so that none finds in a
// cache what it left there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/graph.hpp"

namespace switchyard::tools {

using Graphs = std::vector<std::unique_ptr<Graph>>;  // by set of buffers

// Of many replays.
struct Timing {
  double median_us;
  double min_us;
  double p95_us;
  uint64_t bytes;  // read and written, counted

  double bytes_per_second() const { return static_cast<double>(bytes) / (median_us * 1e-6); }
};

// One phase, of every replay.
struct PhaseSamples {
  std::string name;
  std::vector<double> microseconds;

  Timing summarize(uint64_t bytes) const;
};

// How many sets of buffers must take turns: 2..max_sets, more where sets are small and there is a cache to
// beat.
int num_buffer_sets(Target target, uint64_t set_bytes, int max_sets);

// Enqueues a pause in front of what is timed, on every rank: a graph's first launches else wait for the rest
// of it to be submitted, which nothing that runs in the middle of a model does. 0: none.
Status enqueue_lead(World& world, uint64_t microseconds);

// Launches the graphs in turn, each at least once, waiting for each, and takes the times between their marks.
Result<std::vector<PhaseSamples>> time_replays(const Graphs& graphs, int num_replays);

}  // namespace switchyard::tools
