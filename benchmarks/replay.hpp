// Timing by graph replay: graphs of the same work on different buffers alternate, so that none finds its own
// data in a cache.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/world.hpp"

namespace switchyard::tools {

using Graphs = std::vector<std::unique_ptr<Graph>>;  // by set of buffers

// The times of many replays.
struct Timing {
  double median_us;
  double min_us;
  double p95_us;
  uint64_t bytes;  // read and written, counted

  double bytes_per_second() const { return static_cast<double>(bytes) / (median_us * 1e-6); }
};

// The times of one span of a graph, of every replay.
struct SpanSamples {
  std::string name;
  std::vector<double> microseconds;

  Timing summarize(uint64_t bytes) const;
};

// How many sets of buffers must alternate: 2..max_sets, more if sets are so small that a cache could hold
// them.
int num_buffer_sets(Target target, uint64_t set_bytes, int max_sets);

// Enqueues a pause in front of what is timed, on every local rank. Otherwise a graph's first launches would
// wait until the rest of it is submitted, which launches in the middle of a model do not. 0: no pause.
Status enqueue_lead(World& world, uint64_t microseconds);

// Launches the graphs round-robin, each at least once, waits for each, and returns the times between their
// marks. `on_replay`, if there is one, is told of each that has ended which graph it was.
Result<std::vector<SpanSamples>> time_replays(const Graphs& graphs, int num_replays,
                                              const std::function<Status(size_t graph_idx)>& on_replay = {});

}  // namespace switchyard::tools
