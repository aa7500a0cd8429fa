// The trace of one rank: memory that its kernels write events into, and the way to get at them.
#pragma once

#include "switchyard/detail/sync/trace_buffer.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

class TraceRecorder {
 public:
  static constexpr uint32_t kMaxEventsPerBlock = 1 << 20;

  static Result<TraceRecorder> create(const Rank& rank, int num_blocks, uint32_t events_per_block);

  // What a launch of at most `num_blocks` blocks is given. Stays valid as long as the recorder lives.
  TraceBuffer buffer() const { return {events_.data(), num_events_.data(), events_per_block_}; }
  // What the kernels that have ended left since the last take(). No kernel may be running.
  Result<RankTrace> take();

 private:
  TraceRecorder(const Rank& rank, uint32_t events_per_block)
      : rank_(&rank), events_per_block_(events_per_block) {}

  const Rank* rank_;
  uint32_t events_per_block_;
  Buffer<TraceEvent> events_;
  Buffer<uint64_t> num_events_;
};

}  // namespace switchyard
