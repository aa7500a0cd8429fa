#include "replay.hpp"

#include <algorithm>

#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

// Larger than the L2 of any GPU we know, so that a replay does not read what the last one left there.
constexpr uint64_t kRotatedBytes = 64ull << 20;
constexpr int kMaxSets = 64;

}  // namespace

Timing SpanSamples::summarize(uint64_t bytes) const {
  std::vector<double> sorted = microseconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t last = sorted.size() - 1;
  const double median = (sorted[last / 2] + sorted[last - last / 2]) / 2;
  return {median, sorted.front(), sorted[(last * 95 + 99) / 100], bytes};
}

int num_buffer_sets(Target target, uint64_t set_bytes, int max_sets) {
  const uint64_t wanted = target == Target::kCuda ? 2 + kRotatedBytes / set_bytes : 2;
  return static_cast<int>(std::clamp<uint64_t>(wanted, 2, std::clamp(max_sets, 2, kMaxSets)));
}

Status enqueue_lead(World& world, uint64_t microseconds) {
  for (const int r : world.local_ranks()) {
    if (microseconds == 0) break;
    const Rank& rank = world.rank(r);
    SWITCHYARD_RETURN_IF_ERROR(rank.launch(kernel_table(rank).stall, {}, {microseconds * 1000}));
  }
  return Status();
}

Result<std::vector<SpanSamples>> time_replays(const Graphs& graphs, int num_replays,
                                              const std::function<Status(size_t graph_idx)>& on_replay) {
  std::vector<SpanSamples> samples;
  for (size_t i = 0; i < std::max<size_t>(static_cast<size_t>(num_replays), graphs.size()); ++i) {
    Graph& graph = *graphs[i % graphs.size()];
    SWITCHYARD_RETURN_IF_ERROR(graph.launch());
    SWITCHYARD_RETURN_IF_ERROR(graph.synchronize());
    Result<std::vector<GraphSpan>> spans = graph.elapsed();
    if (!spans.ok()) return spans.status();
    if (on_replay) SWITCHYARD_RETURN_IF_ERROR(on_replay(i % graphs.size()));
    samples.resize(spans.value().size());
    for (size_t span_idx = 0; span_idx < samples.size(); ++span_idx) {
      samples[span_idx].name = spans.value()[span_idx].name;
      samples[span_idx].microseconds.push_back(spans.value()[span_idx].microseconds);
    }
  }
  return samples;
}

}  // namespace switchyard::tools
