// The parameters of the two kernels around a dispatch to ranks (ep/rank_choices.hpp).
#pragma once

#include "switchyard/detail/ep/params.hpp"

namespace switchyard {

// What a rank keeps of its tokens' choices, in its arena: [max_tokens_per_rank][top_k] each. Peers read seats
// and weights, of which there are two copies (kept_copy()).
struct KeptChoices {
  int32_t* seats;       // of all ranks; -1: padding
  float* weights;       // 0 beside padding
  int32_t* rank_ids;    // the rank that is sent the token, at the first choice it owns; else -1
  float* rank_weights;  // 1: what comes back has been weighted
};

struct ChooseRanksParams {
  EpShape shape;  // of the experts
  int32_t my_rank;
  int32_t num_tokens;
  const int32_t* topk_ids;    // [num_tokens][top_k]; -1 is padding
  const float* topk_weights;  // [num_tokens][top_k]
  KeptChoices kept;
  uint64_t copy_stride;  // elements from a copy to the other
  EPLocalSyncCounters<> ep_counters;
  WaitContext wait_context;
};

struct FetchChoicesParams {
  int32_t my_rank;
  int32_t n_ranks;  // that exchange rows
  int32_t n_local_experts;
  int32_t top_k;
  const uint32_t* first_row;    // of the group of tokens
  const uint64_t* step_cells;   // [n_ranks]: the rows from each rank, as StepCell
  const int32_t* src_info;      // [rows][2]
  RankPointers<int32_t> seats;  // KeptChoices of every rank
  RankPointers<float> weights;
  uint64_t copy_stride;

  int32_t* row_experts;    // [rows][top_k]; null: not wanted
  float* row_weights;      // [rows][top_k]; null: not wanted
  int32_t* expert_totals;  // [1 + n_local_experts]: rows, and choices of each local expert; null: not wanted
  EPLocalSyncCounters<> ep_counters;
  WaitContext wait_context;
};

}  // namespace switchyard
