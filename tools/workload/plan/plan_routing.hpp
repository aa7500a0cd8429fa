// The routing that a plan counts: drawn as `switchyard run` draws it, without logits, so that hundreds of
// ranks take a moment; or from a file.
#pragma once

#include "cluster_plan.hpp"

namespace switchyard::tools {

struct PlanDraw {
  int n_ranks = 8;
  int tokens_per_rank = 4096;
  int top_k = 8;
  // [expert]: how often each is wanted, as shares of any sum. If fewer than top_k have one, the other choices
  // of a token are padding.
  std::vector<double> popularity;
  uint64_t seed = 1;
  uint64_t max_ids = 4'000'000;  // that are drawn; their tokens then stand for all
};

std::vector<double> uniform_popularity(int n_experts);
// The expert of number i is wanted 1 / (i + 1) times as often as the first.
std::vector<double> zipf_popularity(int n_experts);

// Draws top_k different experts for each token, one after the other, each by its share among those that are
// left: what the top_k largest of logits with Gumbel noise are.
PlanRouting draw_routing(const PlanDraw& draw);
// Every id is 0.
PlanRouting one_expert_routing(PlanDraw draw);
// The ids of each rank, as a routing file has them.
PlanRouting routing_of_ids(const std::vector<std::vector<int32_t>>& ids, int n_experts, int top_k);

// How many rows each expert gets.
std::vector<double> rows_per_expert(const PlanRouting& routing, int n_experts);

}  // namespace switchyard::tools
