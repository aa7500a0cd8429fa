// A step whose tokens go once to each rank that owns some of their experts, in plain loops: to the exchange,
// ranks are the experts.
#pragma once

#include "reference.hpp"

namespace switchyard::reference {

// The step as the exchange sees it: ids are ranks, each at the token's first choice that it owns, with weight
// 1; the other choices are padding. Expert n_ranks is the shared one.
Step per_rank(const Step& step);

// What `experts` of an ExpertFunction is for rank_sum(): the step with its experts.
struct RankSums {
  const Step& step;
  ExpertFunction expert;
  const void* experts;
};
// The ExpertFunction of per_rank(): what a rank makes of a token, the sum of its experts' results, each times
// its weight, in fp32, in the order of k, rounded once. The shared expert's result is as it is.
std::vector<bf16> rank_sum(const void* rank_sums, const Step&, int rank, int token_idx, int owner);

// moe_layer() of a step whose ranks each sum up what their experts made of a token.
std::vector<std::vector<bf16>> moe_layer_per_rank(const Step& step, const MlpExperts& experts);

// Returns an empty string if row_experts and row_weights of the step are right, else the first difference.
// The rest of the result must be.
std::string check_choices(const Step& step, int rank, const DispatchResult& result);

}  // namespace switchyard::reference
