// The router: each token's top_k experts by logit (ties to the lower index, NaN counts as minus infinity),
// with softmax weights over those chosen.
#pragma once

#include <cmath>

#include "switchyard/detail/base/exp.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/target/prefetch.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct RoutedExpert {
  float logit;
  int32_t expert_idx;

  SWITCHYARD_DEVICE bool beats(const RoutedExpert& other) const {
    return expert_idx >= 0 && (other.expert_idx < 0 || logit > other.logit ||
                               (logit == other.logit && expert_idx < other.expert_idx));
  }
};

// Returns the best expert of this lane (experts lane, lane + 32, ...) that has not been taken.
SWITCHYARD_DEVICE RoutedExpert best_of_lane(const float* logits, int n_experts, uint32_t taken) {
  RoutedExpert best{0.0f, -1};
  for (int i = 0; i * kWarpSize + target::lane_idx() < n_experts; ++i) {
    const int expert_idx = i * kWarpSize + target::lane_idx();
    const float logit = logits[expert_idx];
    const RoutedExpert candidate{logit == logit ? logit : -INFINITY, expert_idx};
    if ((taken >> i & 1u) == 0 && candidate.beats(best)) best = candidate;
  }
  return best;
}

// One warp handles a token, by top_k rounds of a warp-wide maximum.
SWITCHYARD_DEVICE void route_token(const TopkSoftmaxParams& params, int token_idx) {
  const float* logits = params.logits + static_cast<int64_t>(token_idx) * params.n_experts;
  int32_t* ids = params.topk_ids + static_cast<int64_t>(token_idx) * params.top_k;
  float* weights = params.topk_weights + static_cast<int64_t>(token_idx) * params.top_k;
  uint32_t taken = 0;  // bit i: expert lane + 32 i
  float my_weight = 0.0f, best_logit = 0.0f, sum = 0.0f;
  for (int k = 0; k < params.top_k; ++k) {
    RoutedExpert best = best_of_lane(logits, params.n_experts, taken);
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const RoutedExpert other{target::shuffle_xor(best.logit, mask),
                               target::shuffle_xor(best.expert_idx, mask)};
      if (other.beats(best)) best = other;
    }
    if (best.expert_idx % kWarpSize == target::lane_idx()) taken |= 1u << (best.expert_idx / kWarpSize);
    if (k == 0) best_logit = best.logit;
    const float weight = best.logit == best_logit ? 1.0f : exp_f32(best.logit - best_logit);
    sum += weight;
    if (target::lane_idx() == k) {
      my_weight = weight;
      ids[k] = best.expert_idx;
    }
  }
  if (target::lane_idx() < params.top_k) weights[target::lane_idx()] = my_weight / sum;
}

SWITCHYARD_KERNEL void topk_softmax_kernel(TopkSoftmaxParams params) {
  if (target::warp_idx() == 0) prefetch_share(params.prefetched);
  const int num_warps = target::num_warps() * target::num_blocks();
  for (int token_idx = target::block_idx() * target::num_warps() + target::warp_idx();
       token_idx < params.num_tokens; token_idx += num_warps)
    route_token(params, token_idx);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
