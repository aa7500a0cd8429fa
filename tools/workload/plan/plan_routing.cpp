#include "plan_routing.hpp"

#include <algorithm>
#include <random>

namespace switchyard::tools {
namespace {

// Draws experts by their shares, each at most once for a token.
class ExpertDraw {
 public:
  explicit ExpertDraw(const std::vector<double>& popularity)
      : popularity_(popularity), is_taken_(popularity.size()) {
    double sum = 0;
    for (const double share : popularity) ends_.push_back(sum += share);
  }

  // Appends the ids of a token.
  void draw_token(std::mt19937_64& random, int top_k, std::vector<int32_t>& ids) {
    const size_t first = ids.size();
    for (int k = 0; k < top_k; ++k) {
      const int expert = draw_one(random);
      if (expert >= 0) is_taken_[static_cast<size_t>(expert)] = true;
      ids.push_back(expert);
    }
    for (size_t i = first; i < ids.size(); ++i)
      if (ids[i] >= 0) is_taken_[static_cast<size_t>(ids[i])] = false;
  }

 private:
  // A number in [0, 1); the same on every machine, which the distributions of the standard library are not.
  static double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

  // Experts that the token has are drawn again, which leaves the shares of the others as they are. Where a
  // token has most of what is wanted, it is drawn from what is left.
  int draw_one(std::mt19937_64& random) const {
    constexpr int kNumTries = 32;
    for (int i = 0; i < kNumTries && ends_.back() > 0; ++i) {
      const auto place = std::upper_bound(ends_.begin(), ends_.end(), uniform(random) * ends_.back());
      const size_t expert = static_cast<size_t>(std::min(place, ends_.end() - 1) - ends_.begin());
      if (!is_taken_[expert] && popularity_[expert] > 0) return static_cast<int>(expert);
    }
    return draw_from_rest(random);
  }
  int draw_from_rest(std::mt19937_64& random) const {
    double rest = 0;
    for (size_t expert = 0; expert < popularity_.size(); ++expert)
      if (!is_taken_[expert]) rest += popularity_[expert];
    double place = uniform(random) * rest;
    int last = -1;  // the last that is wanted: rounding may leave the place behind it
    for (size_t expert = 0; expert < popularity_.size(); ++expert) {
      if (is_taken_[expert] || popularity_[expert] == 0) continue;
      last = static_cast<int>(expert);
      if (place < popularity_[expert]) break;
      place -= popularity_[expert];
    }
    return last;
  }

  const std::vector<double>& popularity_;
  std::vector<double> ends_;  // sums of the shares up to each expert's
  std::vector<bool> is_taken_;
};

// Without ids. Sets how many tokens of each rank are to be drawn.
PlanRouting empty_routing(const PlanDraw& draw, int& num_drawn) {
  const uint64_t ids_per_token = static_cast<uint64_t>(draw.n_ranks) * static_cast<uint64_t>(draw.top_k);
  num_drawn = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(draw.tokens_per_rank),
                                                  std::max<uint64_t>(draw.max_ids / ids_per_token, 1)));
  PlanRouting routing;
  routing.step.n_ranks = draw.n_ranks;
  routing.step.n_experts = static_cast<int>(draw.popularity.size());
  routing.step.top_k = draw.top_k;
  routing.tokens_per_drawn =
      num_drawn == 0 ? 1 : static_cast<double>(draw.tokens_per_rank) / static_cast<double>(num_drawn);
  return routing;
}

}  // namespace

std::vector<double> uniform_popularity(int n_experts) {
  return std::vector<double>(static_cast<size_t>(n_experts), 1);
}

std::vector<double> zipf_popularity(int n_experts) {
  std::vector<double> shares;
  for (int expert = 0; expert < n_experts; ++expert) shares.push_back(1.0 / (expert + 1));
  return shares;
}

PlanRouting draw_routing(const PlanDraw& draw) {
  int num_drawn = 0;
  PlanRouting routing = empty_routing(draw, num_drawn);
  ExpertDraw experts(draw.popularity);
  for (int rank = 0; rank < draw.n_ranks; ++rank) {
    std::mt19937_64 random(draw.seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(rank));
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(num_drawn) * static_cast<size_t>(draw.top_k));
    for (int token = 0; token < num_drawn; ++token) experts.draw_token(random, draw.top_k, ids);
    routing.step.topk_ids.push_back(std::move(ids));
  }
  return routing;
}

PlanRouting one_expert_routing(PlanDraw draw) {
  draw.max_ids = 1;  // all tokens are alike: one of each rank stands for all
  int num_drawn = 0;
  PlanRouting routing = empty_routing(draw, num_drawn);
  const std::vector<int32_t> ids(static_cast<size_t>(num_drawn) * static_cast<size_t>(draw.top_k));
  routing.step.topk_ids.assign(static_cast<size_t>(draw.n_ranks), ids);
  return routing;
}

PlanRouting routing_of_ids(const std::vector<std::vector<int32_t>>& ids, int n_experts, int top_k) {
  PlanRouting routing;
  routing.step.n_ranks = static_cast<int>(ids.size());
  routing.step.n_experts = n_experts;
  routing.step.top_k = top_k;
  routing.step.topk_ids = ids;
  return routing;
}

std::vector<double> rows_per_expert(const PlanRouting& routing, int n_experts) {
  std::vector<double> rows(static_cast<size_t>(n_experts));
  for (const std::vector<int32_t>& ids : routing.step.topk_ids)
    for (const int32_t id : ids)
      if (id >= 0) rows[static_cast<size_t>(id)] += routing.tokens_per_drawn;
  return rows;
}

}  // namespace switchyard::tools
