// How kernels record trace events. On the host a slice costs one branch when tracing is off. On CUDA even
// code that never runs costs registers and instruction cache: kernels that can trace are compiled separately,
// with SWITCHYARD_TRACED, and in all others a slice is empty.
#pragma once

#include "switchyard/detail/sync/trace_buffer.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

#if defined(__CUDACC__) && !defined(SWITCHYARD_TRACED)
inline constexpr bool kCanTrace = false;
#else
inline constexpr bool kCanTrace = true;
#endif

SWITCHYARD_DEVICE bool is_on(const TraceBuffer& trace) { return kCanTrace && trace.events != nullptr; }

// Any thread of the block may record an event. The host reads the events when the launch has ended, which
// orders them.
SWITCHYARD_DEVICE void record(const TraceBuffer& trace, const TraceEvent& event) {
  const uint64_t block_idx = static_cast<uint64_t>(target::block_idx());
  const uint64_t event_idx = target::atomic_add_relaxed_device(&trace.num_events[block_idx], uint64_t{1});
  if (event_idx >= trace.events_per_block) return;  // counted all the same
  TraceEvent& recorded = trace.events[block_idx * trace.events_per_block + event_idx];
  target::st(&recorded.begin_ns, event.begin_ns);
  target::st(&recorded.end_ns, event.end_ns);
  target::st(&recorded.name, event.name);
  target::st(&recorded.phase, event.phase);
  target::st(&recorded.late_rank, event.late_rank);
  target::st(&recorded.expert, event.expert);
}

// Records a role of the block, from the construction to the end of the scope, in thread 0.
class TraceSlice {
 public:
  SWITCHYARD_DEVICE TraceSlice(const TraceBuffer& trace, Phase phase, TraceName name)
      : trace_(trace), phase_(phase), name_(name) {
    if (records()) [[unlikely]]
      record(trace_, {target::now_ns(), TraceEvent::kNoTime, name_, phase_, -1, -1});
  }
  SWITCHYARD_DEVICE ~TraceSlice() {
    if (records()) [[unlikely]]
      record(trace_, {TraceEvent::kNoTime, target::now_ns(), name_, phase_, -1, -1});
  }
  TraceSlice(const TraceSlice&) = delete;
  TraceSlice& operator=(const TraceSlice&) = delete;

 private:
  SWITCHYARD_DEVICE bool records() const { return is_on(trace_) && target::thread_idx() == 0; }

  const TraceBuffer& trace_;
  const Phase phase_;
  const TraceName name_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
