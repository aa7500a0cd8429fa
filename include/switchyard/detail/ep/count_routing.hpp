// Counts what a rank's ids ask for before any of it is sent: how many tokens each rank gets, how often each
// expert is chosen, and which token goes to which rank. Experts lie evenly on the ranks. A lane has one
// choice; a warp has as many tokens as it has lanes for. Ids that are no expert's count nowhere.
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct CountRoutingShared {
  uint32_t tokens_of_rank[kMaxRanks];
  uint32_t choices_of_expert[kMaxExperts];
};

struct CountRouting {
  const CountRoutingParams& params;
  CountRoutingShared& shared = target::shared_storage<CountRoutingShared>();

  SWITCHYARD_DEVICE void run() const {
    clear();
    target::sync_block();
    const int tokens_per_warp = kWarpSize / params.top_k;
    const int warp = target::block_idx() * target::num_warps() + target::warp_idx();
    const int num_warps = target::num_blocks() * target::num_warps();
    for (int first = warp * tokens_per_warp; first < params.num_tokens; first += num_warps * tokens_per_warp)
      count_tokens(first,
                   first + tokens_per_warp < params.num_tokens ? tokens_per_warp : params.num_tokens - first);
    target::sync_block();
    add_to(params.tokens_of_rank, shared.tokens_of_rank, params.n_ranks);
    add_to(params.choices_of_expert, shared.choices_of_expert, params.n_experts);
  }

 private:
  SWITCHYARD_DEVICE void clear() const {
    for (int rank = target::thread_idx(); rank < params.n_ranks; rank += target::num_threads())
      shared.tokens_of_rank[rank] = 0;
    for (int expert = target::thread_idx(); expert < params.n_experts; expert += target::num_threads())
      shared.choices_of_expert[expert] = 0;
  }
  // Called by a whole warp.
  SWITCHYARD_DEVICE void count_tokens(int first_token, int num_tokens) const {
    const int token_of_warp = target::lane_idx() / params.top_k;
    const int64_t id = token_of_warp < num_tokens
                           ? target::ld(params.ids + int64_t{first_token} * params.top_k + target::lane_idx())
                           : -1;
    const bool is_expert = id >= 0 && id < params.n_experts;
    const int rank = is_expert ? static_cast<int>(id) / (params.n_experts / params.n_ranks) : -1;
    const uint32_t same = target::match_any(static_cast<uint32_t>(token_of_warp) << 16 |
                                            (static_cast<uint32_t>(rank) & 0xffffu));
    uint8_t* const in_rank = params.is_token_in_rank + int64_t{first_token} * params.n_ranks;
    for (int i = target::lane_idx(); i < num_tokens * params.n_ranks; i += kWarpSize)
      target::st(in_rank + i, uint8_t{0});
    target::sync_warp();
    if (!is_expert) return;
    target::atomic_add_relaxed_block(&shared.choices_of_expert[id], 1u);
    if ((same & ((1u << target::lane_idx()) - 1)) != 0) return;  // an earlier choice goes there, too
    target::atomic_add_relaxed_block(&shared.tokens_of_rank[rank], 1u);
    target::st(in_rank + token_of_warp * params.n_ranks + rank, uint8_t{1});
  }
  SWITCHYARD_DEVICE void add_to(int32_t* totals, const uint32_t* counts, int num_counts) const {
    for (int i = target::thread_idx(); i < num_counts; i += target::num_threads())
      if (counts[i] != 0) target::atomic_add_relaxed_device(totals + i, static_cast<int32_t>(counts[i]));
  }
};

SWITCHYARD_KERNEL void count_routing_kernel(CountRoutingParams params) { CountRouting{params}.run(); }

}  // namespace switchyard::inline SWITCHYARD_TARGET
