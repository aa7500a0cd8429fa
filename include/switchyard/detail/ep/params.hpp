// The parameters of the expert-parallel kernels.
#pragma once

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/ep/layout.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "switchyard/detail/target/vocabulary.hpp"

namespace switchyard {

// One pointer per rank of the direct-store group, to that rank's copy of the buffer.
template <typename T>
struct RankPointers {
  T* of_rank[kMaxRanks];
};

// The shared expert, where one is fused in: tokens [first_token, first_token + num_tokens) of this rank are
// rows [0, num_tokens) of its own output, group 0.
struct SharedExpertTokens {
  int32_t num_groups;  // 1, or 0: there is none
  int32_t first_token;
  int32_t num_tokens;

  // The token's row, -1 if it has none.
  SWITCHYARD_HD constexpr int row_of(int token_idx) const {
    const int row = token_idx - first_token;
    return row >= 0 && row < num_tokens ? row : -1;
  }
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
  SharedExpertTokens shared_expert;
  // Slotted: DispatchSendLayout, keeps every message, for the shared expert; null: nobody needs it.
  std::byte* send_buf;

  uint32_t* row_offsets;  // [num_groups + 1]: the shared expert where there is one, then the local ones
  int32_t* expert_ids;    // [num_groups]: 0, 1, ..
  int32_t* src_info;      // [rows][2]: source token, k
  uint32_t max_rows;      // rows the output tensors hold

  RankPointers<std::byte> recv_bufs;   // DispatchRecvLayout; direct: rows
  RankPointers<uint64_t> recv_counts;  // DispatchCountLayout
  EPLocalSyncCounters<> ep_counters;   // of shape.n_experts
  WaitContext fault;

  // Direct protocol only.
  RankPointers<uint64_t> count_tables;  // CountTableLayout
  RankPointers<int32_t> src_infos;      // [max_rows][2]
  uint32_t* row_of;                     // [num_tokens][top_k]: the row on the expert's owner
  // From a rank's recv_bufs: the scales, those of its own tokens that others' dispatch_wait takes from it
  // (ScaleSource), and where the scales of each of its rows are.
  uint64_t scales_offset;
  uint64_t token_scales_offset;
  uint64_t scale_sources_offset;
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
  // [rows][hidden] of bf16: what the experts made of the dispatched rows. Direct with a quantised combine:
  // rows as they travel.
  const void* expert_rows;
  const int32_t* src_info;  // [rows][2], as dispatch_wait left it

  int32_t num_tokens;
  SharedExpertTokens shared_expert;  // its output is rows [0, ..) of this rank's expert_rows
  const int32_t* topk_ids;           // [num_tokens][top_k], as dispatched
  const float* topk_weights;         // [num_tokens][top_k]; unused by the unreduced output

  RankPointers<std::byte> recv_bufs;   // CombineRecvLayout; direct: what holds every rank's expert_rows
  RankPointers<uint64_t> recv_counts;  // CombineCountLayout; direct: OutputCellLayout
  EPLocalSyncCounters<> ep_counters;   // as in dispatch
  WaitContext fault;

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
