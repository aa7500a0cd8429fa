// The memory through which ranks exchange tokens: what each rank of a protocol has of it.
#pragma once

#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard {

// Bytes of each buffer of a rank; 0 where the protocol has none.
struct ExchangeSizes {
  uint64_t row_capacity;  // rows
  uint64_t rows, src_info;
  bool has_bf16_rows, has_scales, has_encoded_outputs;
  uint64_t scales_offset, token_scales_offset, scale_sources_offset, expert_outputs_offset;  // in `rows`
  uint64_t dispatch_recv, dispatch_counts, combine_recv, combine_counts, counters, count_table, row_of;
  uint64_t send, reduce_values, reduce_cells;
  uint64_t expert_scales;

  static Result<ExchangeSizes> of(const ExpertParallelConfig& config, int n_ranks);
  // The bytes of a token as it comes and as it travels.
  static uint32_t token_bytes(const ExpertParallelConfig& config);
  static uint32_t encoded_bytes(const ExpertParallelConfig& config);
  // The bytes of an expert's row on its way back.
  static uint32_t combine_bytes(const ExpertParallelConfig& config);
  static uint32_t message_bytes(const ExpertParallelConfig& config);
};

// The memory of one rank. A cell of the slotted protocol in which nothing has arrived is all ones; one of the
// direct protocol has the number of another step.
struct ExchangeMemory {
  Protocol protocol;
  DeviceMemory dispatch_recv, dispatch_counts, combine_recv, combine_counts, counters, count_table, row_of;
  DeviceMemory send;                         // of the slotted shared expert
  DeviceMemory reduce_values, reduce_cells;  // of all_reduce()
  DeviceMemory row_memory;                   // what assign_rows() places
  DeviceMemory src_info;
  DeviceMemory expert_scales;  // of NVFP4 by expert: [expert of the model]
  DeviceMemory poison;
  DeviceMemory fault;  // a FaultRecord of what broke, and one of a step over capacity

  static Result<ExchangeMemory> allocate(Device& device, const ExchangeSizes& sizes, Protocol protocol);
  // Allocates the rows unless that has been done.
  Status allocate_rows(Device& device, const ExchangeSizes& sizes);
  // Returns nulls before allocate_rows().
  RowBuffers row_buffers(const ExchangeSizes& sizes) const;
  uint64_t bytes() const;

  EPLocalSyncCounters<> ep_counters(const EpShape& shape) const {
    return {counters.as<int32_t>(), shape.n_experts};
  }

  // Resets the memory as if nothing had ever arrived. Enqueued on the rank's stream.
  Status clear(const Rank& owner);
  // Overwrites what earlier steps received.
  Status overwrite(const Rank& owner, uint8_t value) const;

  // Fills in what the peers of rank `rank`, whose memory this is, may write and read of it.
  void share_as(size_t rank, DispatchCall& call) const;
  void share_as(size_t rank, CombineCall& call) const;
};

}  // namespace switchyard
