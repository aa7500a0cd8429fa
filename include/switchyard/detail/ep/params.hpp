// The parameters of the expert-parallel kernels.
#pragma once

#include "switchyard/detail/base/prefetched_memory.hpp"
#include "switchyard/detail/ep/group_layout.hpp"
#include "switchyard/detail/ep/layout.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/detail/target/wire_handle.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/expert_parallel.hpp"

namespace switchyard {

// This rank's copy of a buffer that every rank has, and those of its peers, which kernels without a wire
// load from and store to; kernels with a wire find those in `Peers`.
template <typename T>
struct RankPointers {
  T* mine;
  T* of_rank[kMaxDirectRanks];
};

// For kernels with a wire. All buffers of a rank lie in its arena, at the same offsets on every rank.
struct Peers {
  std::byte* const* arena_of_rank;  // in the memory of this rank's device; null: reached over the wire only
  Wire wire;
};

// What a dispatch needs whatever the protocol and the token format. dispatch_async reads the first fields,
// dispatch_wait writes the second, and dispatch does both.
struct DispatchStep {
  EpShape shape;
  int32_t my_rank;
  Scope signal_scope;  // of releases to peers: wide enough to reach them
  int32_t num_tokens;
  const void* input_tokens;  // [num_tokens][hidden] of the format's input type, or codes
  // The scales of tokens that have been encoded already: input_tokens are then their codes. Null: the tokens
  // are to be encoded.
  const std::byte* input_scales;
  uint32_t token_stride;    // bytes from a token to the next
  uint32_t scales_stride;   // the same, of input_scales
  const int32_t* topk_ids;  // [num_tokens][top_k]; -1 is padding
  SharedExpertTokens shared_expert;
  GroupLayout group_layout;
  int64_t* expert_counts;  // [shape.n_experts]: rows this rank has ever sent; null: not asked for

  uint32_t* row_offsets;  // [num_groups + 1]: the shared expert where there is one, then the local ones
  uint32_t* row_counts;   // [num_groups]: rows that have been written; null: nobody asks
  int32_t* expert_ids;    // [num_groups]: 0, 1, ..
  int32_t* src_info;      // [rows][2]: source token, k
  uint32_t max_rows;      // rows the output tensors hold
  // [n_ranks], what both halves add their waits for each rank to (sync/rank_waits.hpp); null: nobody asks.
  uint64_t* rank_wait_ns;

  RankPointers<std::byte> recv_bufs;   // DispatchRecvLayout; direct: rows
  RankPointers<uint64_t> recv_counts;  // DispatchCountLayout
  EPLocalSyncCounters<> ep_counters;   // of shape.n_experts
  WaitContext wait_context;
  Peers peers;
};

// What a dispatch of the slotted protocol needs in addition.
struct SlottedDispatchPart {
  // DispatchSendLayout: messages for the shared expert, and, in kernels with a wire, all others. Null: there
  // is neither.
  std::byte* send_buf;
};

// What a dispatch of the direct protocol needs for ranks that are reached over the wire; all of it lies in
// this rank's arena.
struct FarDispatchPart {
  uint64_t* counts_ready;        // [n_ranks]: a StepCell each
  std::byte* kept_rows;          // [max tokens][top_k if encoded by expert][row bytes]
  std::byte* kept_scales;        // the same, of scales, aligned to 16 bytes each
  uint64_t* kept_sources;        // [max tokens x top_k]: src_info, expert by expert
  uint32_t* kept_scale_sources;  // the same
  uint32_t* kept_links;          // the same, of RowLink
  float* kept_row_weights;       // the same, of weights
  std::byte* arrived_scales;     // [max_rows][entry bytes]: where the scale tensor interleaves rows
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
  // The rows in front of it are those of other steps (row_sets), whose scales stay; a multiple of
  // kScaleBandRows.
  uint32_t first_scaled_row;
  // Senders store scales in the tensors of the owners, also where rows interleave there; nobody fetches them.
  bool sends_scales;
  // Kernels that link rows: where in a rank's recv_bufs the links of its rows are, and whether a token is
  // carried only to the first of its siblings; the owner then fills the others.
  uint64_t row_links_offset;
  bool carries_once;
  // Where tokens are carried once: where in a rank's recv_bufs the scales of its rows arrive, if their tensor
  // interleaves rows, and how many bytes they are apart (SiblingScales).
  uint64_t arrived_scales_offset;
  uint32_t arrived_scales_stride;
  // Where an owner sums up siblings: this rank's weights, [num_tokens][top_k], and where in a rank's
  // recv_bufs those of its rows are. Null: nobody asks for them.
  const float* topk_weights;
  uint64_t row_weights_offset;
  bool reopens_step;  // what combine is to know of the last step stays: whether it was skipped
  bool calls_off;     // all ranks are to skip the step; this one has no tokens
  FarDispatchPart wire;
};

// The parameters of a dispatch kernel. `Part` is the protocol's own part.
template <typename Part, typename Format>
struct DispatchParams : DispatchStep, Part {
  Format format;  // holds the output tensors
};

// What a combine needs whatever the protocol and the epilogue. combine_async reads the first fields,
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
  uint64_t* rank_wait_ns;            // as in dispatch, of combine_wait

  RankPointers<std::byte> recv_bufs;   // CombineRecvLayout; direct: what holds every rank's expert_rows
  RankPointers<uint64_t> recv_counts;  // CombineCountLayout; direct: OutputCellLayout
  EPLocalSyncCounters<> ep_counters;   // as in dispatch
  WaitContext wait_context;
  Peers peers;
};

// What a combine of the direct protocol needs for ranks that are reached over the wire.
struct FarCombinePart {
  uint64_t* count_table;    // CountTableLayout, this rank's copy
  const int32_t* src_info;  // [max_rows][2], as dispatch left it
  std::byte* recv_buf;      // CombineRecvLayout: what far ranks put here
  const uint32_t* links;    // [max_rows], a RowLink each: in kernels that link rows only a first one is put
};

// What a combine of each protocol needs in addition.
struct SlottedCombinePart {
  std::byte* send_buf;  // [rows][row bytes]: what is put to peers over the wire; null: there is none
};
struct DirectCombinePart {
  const uint32_t* row_of;  // as dispatch left it
  // Where each rank, without a wire, finds expert_rows that do not lie in recv_bufs; null: they do.
  const std::byte* lent_rows[kMaxDirectRanks];
  bool awaits_readers;  // without a wire: the kernel ends when every rank has read this rank's rows
  FarCombinePart wire;
};

// The parameters of a combine kernel. `Part` is the protocol's own part.
template <typename Part, typename Epilogue>
struct CombineParams : CombineStep, Part {
  Epilogue epilogue;
};

// The parameters of count_routing.
struct CountRoutingParams {
  const int64_t* ids;  // [num_tokens][top_k]
  int32_t num_tokens, top_k, n_experts, n_ranks;
  int32_t* tokens_of_rank;     // [n_ranks]: added to
  int32_t* choices_of_expert;  // [n_experts]: added to
  uint8_t* is_token_in_rank;   // [num_tokens][n_ranks]
};

// The parameters of narrow_ids.
struct NarrowIdsParams {
  int32_t num_ids;
  const int64_t* ids;
  int32_t* narrowed;
};

// The parameters of count_sources.
struct CountSourcesParams {
  int32_t num_groups;          // of experts
  int32_t n_ranks;             // that exchange rows
  const uint64_t* step_cells;  // [num_groups][n_ranks], a StepCell each
  EPLocalSyncCounters<> ep_counters;
  uint64_t* source_ranges;  // [num_groups][n_ranks]; null: not wanted
  int32_t* row_totals;      // [num_groups]; null: not wanted
  WaitContext wait_context;
};

// The parameters of store_rows.
struct StoreRowsParams {
  int32_t num_groups;
  uint32_t row_bytes;            // a multiple of 16
  uint32_t from_rows_per_group;  // 0: `from` has a row where `to` has one
  uint64_t num_from_rows;        // that `from` has; a step that has more is a fault
  const uint32_t* row_offsets;   // [num_groups], in `to`
  const uint32_t* row_counts;    // [num_groups]
  const std::byte* from;
  std::byte* to;
  WaitContext wait_context;
};

// The parameters of the router.
struct TopkSoftmaxParams {
  int32_t num_tokens;
  int32_t n_experts;
  int32_t top_k;                     // at most n_experts
  const float* logits;               // [num_tokens][n_experts]
  int32_t* topk_ids;                 // [num_tokens][top_k], best first
  float* topk_weights;               // [num_tokens][top_k], sum 1
  PrefetchedMemory prefetched = {};  // by all blocks, also those without a token
};

}  // namespace switchyard
