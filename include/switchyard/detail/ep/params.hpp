// The parameters of the expert-parallel kernels.
#pragma once

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/ep/layout.hpp"
#include "switchyard/detail/ep/shared_expert_tokens.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "switchyard/detail/target/vocabulary.hpp"

namespace switchyard {

// One pointer per rank of the direct-store group, to that rank's copy of the buffer.
template <typename T>
struct RankPointers {
  T* of_rank[kMaxRanks];
};

// What a dispatch needs whatever the protocol and the token format. dispatch_async reads the first group,
// dispatch_wait writes the second, and dispatch does both.
struct DispatchStep {
  EpShape shape;
  int32_t my_rank;
  Scope signal_scope;  // of releases to peers: wide enough to reach them
  int32_t num_tokens;
  const void* input_tokens;  // [num_tokens][hidden] of the format's input type
  const int32_t* topk_ids;   // [num_tokens][top_k]; -1 is padding
  SharedExpertTokens shared_expert;

  uint32_t* row_offsets;  // [num_groups + 1]: the shared expert where there is one, then the local ones
  int32_t* expert_ids;    // [num_groups]: 0, 1, ..
  int32_t* src_info;      // [rows][2]: source token, k
  uint32_t max_rows;      // rows the output tensors hold

  RankPointers<std::byte> recv_bufs;   // DispatchRecvLayout; direct: rows
  RankPointers<uint64_t> recv_counts;  // DispatchCountLayout
  EPLocalSyncCounters<> ep_counters;   // of shape.n_experts
  WaitContext wait_context;
};

// What a dispatch of the slotted protocol needs in addition.
struct SlottedDispatchPart {
  std::byte* send_buf;  // DispatchSendLayout: every message, for the shared expert; null: there is none
};

// What a dispatch of the direct protocol needs in addition.
struct DirectDispatchPart {
  RankPointers<uint64_t> count_tables;  // CountTableLayout
  RankPointers<int32_t> src_infos;      // [max_rows][2]
  uint32_t* row_of;                     // [num_tokens][top_k]: the row on the expert's owner
  // Offsets into a rank's recv_bufs: its scales, those of its own tokens that the dispatch_wait of others
  // fetches (ScaleSource), and the sources of its rows' scales.
  uint64_t scales_offset;
  uint64_t token_scales_offset;
  uint64_t scale_sources_offset;
};

// The parameters of a dispatch kernel. `Part` is the protocol's own part.
template <typename Part, typename Format>
struct DispatchParams : DispatchStep, Part {
  Format format;  // holds the output tensors
};

// What a combine needs whatever the protocol and the epilogue. combine_async reads the first group,
// combine_wait the second, and combine both.
struct CombineStep {
  EpShape shape;
  int32_t my_rank;
  Scope signal_scope;  // of releases to peers: wide enough to reach them
  // [rows][hidden] of bf16: what the experts made of the dispatched rows. Direct with a quantised combine:
  // encoded rows.
  const void* expert_rows;
  const int32_t* src_info;  // [rows][2], as dispatch_wait left it

  int32_t num_tokens;
  SharedExpertTokens shared_expert;  // its output is rows [0, ..) of this rank's expert_rows
  const int32_t* topk_ids;           // [num_tokens][top_k], as dispatched
  const float* topk_weights;         // [num_tokens][top_k]; unused by the unreduced output

  RankPointers<std::byte> recv_bufs;   // CombineRecvLayout; direct: what holds every rank's expert_rows
  RankPointers<uint64_t> recv_counts;  // CombineCountLayout; direct: OutputCellLayout
  EPLocalSyncCounters<> ep_counters;   // as in dispatch
  WaitContext wait_context;
};

// What a combine of each protocol needs in addition.
struct SlottedCombinePart {};
struct DirectCombinePart {
  const uint32_t* row_of;  // as dispatch left it
};

// The parameters of a combine kernel. `Part` is the protocol's own part.
template <typename Part, typename Epilogue>
struct CombineParams : CombineStep, Part {
  Epilogue epilogue;
};

// The parameters of the router.
struct TopkSoftmaxParams {
  int32_t num_tokens;
  int32_t n_experts;
  int32_t top_k;        // at most n_experts
  const float* logits;  // [num_tokens][n_experts]
  int32_t* topk_ids;    // [num_tokens][top_k], best first
  float* topk_weights;  // [num_tokens][top_k], sum 1
};

}  // namespace switchyard
