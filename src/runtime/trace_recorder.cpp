#include "switchyard/detail/runtime/trace_recorder.hpp"

#include <algorithm>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard {
namespace {

// Joins the begin and the end of each role, which one thread wrote alternately. A role whose end found no
// room ends with the last event that did.
std::vector<TraceEvent> join_roles(const std::vector<TraceEvent>& recorded) {
  std::vector<TraceEvent> events;
  std::vector<size_t> open;
  uint64_t last_ns = 0;
  for (const TraceEvent& event : recorded) {
    last_ns = std::max(last_ns, event.end_ns != TraceEvent::kNoTime ? event.end_ns : event.begin_ns);
    if (event.begin_ns == TraceEvent::kNoTime) {
      if (open.empty()) continue;
      events[open.back()].end_ns = event.end_ns;
      open.pop_back();
    } else {
      if (event.end_ns == TraceEvent::kNoTime) open.push_back(events.size());
      events.push_back(event);
    }
  }
  for (const size_t event_idx : open) events[event_idx].end_ns = last_ns;
  return events;
}

}  // namespace

Result<TraceRecorder> TraceRecorder::create(const Rank& rank, int num_blocks, uint32_t events_per_block) {
  if (events_per_block < 1 || events_per_block > kMaxEventsPerBlock)
    return invalid_argument("events_per_block is %u; it must be 1..%u", events_per_block, kMaxEventsPerBlock);
  TraceRecorder recorder(rank, events_per_block);
  const size_t num_counts = static_cast<size_t>(num_blocks);
  Result<Buffer<TraceEvent>> events = rank.allocate<TraceEvent>(num_counts * events_per_block);
  if (!events.ok())
    return resource_exhausted("a trace of %d blocks with %u events each: %s", num_blocks, events_per_block,
                              events.status().message().c_str());
  Result<Buffer<uint64_t>> num_events = rank.allocate<uint64_t>(num_counts);
  if (!num_events.ok()) return num_events.status();
  recorder.events_ = std::move(events).value();
  recorder.num_events_ = std::move(num_events).value();
  return recorder;
}

Result<RankTrace> TraceRecorder::take() {
  Result<std::vector<uint64_t>> num_events = num_events_.download();
  if (!num_events.ok()) return num_events.status();
  RankTrace trace;
  const TraceEvent* first = events_.data();
  for (const uint64_t count : num_events.value()) {
    const uint64_t num_kept = std::min<uint64_t>(count, events_per_block_);
    std::vector<TraceEvent> recorded(num_kept);
    SWITCHYARD_RETURN_IF_ERROR(
        device_of(*rank_).copy(recorded.data(), first, num_kept * sizeof(TraceEvent), rank_->stream()));
    trace.blocks.push_back({join_roles(recorded), count - num_kept});
    first += events_per_block_;
  }
  SWITCHYARD_RETURN_IF_ERROR(num_events_.fill_bytes(0));
  return trace;
}

}  // namespace switchyard
