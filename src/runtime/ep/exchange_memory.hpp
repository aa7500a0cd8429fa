// The memory through which one rank exchanges tokens with its peers: its arena, which they reach, and what is
// its own.
#pragma once

#include "exchange_layout.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard {

// A cell of the slotted protocol in which nothing has arrived is all ones; one of the direct protocol has the
// number of another step.
struct ExchangeMemory {
  const ExchangeLayout* layout;
  Protocol protocol;
  std::byte* arena;     // of the transport
  FaultRecord* faults;  // of the transport, visible to the host: what broke, and a step over capacity
  DeviceMemory row_memory, src_info;  // slotted; made when they are asked for

  template <typename T>
  T* at(const ArenaPart& part) const {
    return part.bytes == 0 ? nullptr : reinterpret_cast<T*>(arena + part.offset);
  }
  // Allocates the rows unless that has been done.
  Status allocate_rows(Device& device);
  // Returns nulls before allocate_rows().
  RowBuffers row_buffers() const;
  uint64_t bytes() const { return layout->arena_bytes + row_memory.bytes() + src_info.bytes(); }

  EPLocalSyncCounters<> ep_counters(const EpShape& shape) const {
    return {at<int32_t>(layout->counters), shape.n_experts};
  }

  // Resets the memory as if nothing had ever arrived. Enqueued on the rank's stream.
  Status clear(const Rank& owner);
  // Overwrites what earlier steps received.
  Status overwrite(const Rank& owner, uint8_t value) const;
};

}  // namespace switchyard
