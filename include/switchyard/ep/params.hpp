// The parameters of the expert-parallel kernels, by the seeds' names.
#pragma once

#include "switchyard/base/bf16.hpp"
#include "switchyard/ep/layout.hpp"
#include "switchyard/sync/fault.hpp"
#include "switchyard/target/vocabulary.hpp"

namespace switchyard {

// One pointer per rank of the direct-store group, to that rank's copy of the buffer.
template <typename T>
struct RankPointers {
  T* of_rank[kMaxRanks];
};

// What a step needs whatever the token format. dispatch_async reads the first group, dispatch_wait writes the
// second, dispatch does both.
struct DispatchArguments {
  EpShape shape;
  int32_t my_rank;
  Scope signal_scope;  // of what is released to peers: as wide as the ranks are apart
  int32_t num_tokens;
  const void* input_tokens;  // [num_tokens][hidden] of the format's input type
  const int32_t* topk_ids;   // [num_tokens][top_k]; -1 is padding
  std::byte* send_buf;       // DispatchSendLayout, keeps every message; null: nobody needs it

  uint32_t* row_offsets;  // [n_local_experts + 1]
  int32_t* expert_ids;    // [n_local_experts], local indices
  int32_t* src_info;      // [rows][2]: source token, k
  uint32_t max_rows;      // rows the output tensors hold

  RankPointers<std::byte> recv_bufs;   // DispatchRecvLayout; direct: rows
  RankPointers<uint64_t> recv_counts;  // DispatchCountLayout
  int32_t* counters;                   // EPLocalSyncCounters::ptr; direct: DirectCounters::ptr
  FaultChannel fault;

  // Direct protocol only.
  RankPointers<uint64_t> count_tables;  // CountTableLayout
  RankPointers<int32_t> src_infos;      // [max_rows][2]
  uint32_t* row_of;                     // [num_tokens][top_k]: the row on the expert's owner
};

template <typename Format>
struct DispatchParams : DispatchArguments {
  Format format;  // holds the output tensors
};

// What a step needs whatever becomes of the values. combine_async reads the first group, combine_wait the
// second, combine both.
struct CombineArguments {
  EpShape shape;
  int32_t my_rank;
  Scope signal_scope;  // of what is released to peers: as wide as the ranks are apart
  const bf16* expert_rows;  // [rows][hidden]: what the experts made of the dispatched rows
  const int32_t* src_info;  // [rows][2], as dispatch_wait left it

  int32_t num_tokens;
  const int32_t* topk_ids;    // [num_tokens][top_k], as dispatched
  const float* topk_weights;  // [num_tokens][top_k]; unused by the unreduced output

  RankPointers<std::byte> recv_bufs;   // CombineRecvLayout; direct: what holds every rank's expert_rows
  RankPointers<uint64_t> recv_counts;  // CombineCountLayout; direct: OutputCellLayout
  int32_t* counters;                   // as in dispatch
  FaultChannel fault;

  const uint32_t* row_of;  // direct protocol only: as dispatch left it
};

template <typename Epilogue>
struct CombineParams : CombineArguments {
  Epilogue epilogue;
};

// The router.
struct TopkSoftmaxParams {
  int32_t num_tokens;
  int32_t n_experts;
  int32_t top_k;        // at most n_experts
  const float* logits;  // [num_tokens][n_experts]
  int32_t* topk_ids;    // [num_tokens][top_k], best first
  float* topk_weights;  // [num_tokens][top_k], sum 1
};

}  // namespace switchyard
