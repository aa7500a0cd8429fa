#include "per_rank.hpp"

#include <algorithm>
#include <atomic>

#include "all_cores.hpp"

namespace switchyard::reference {

Step per_rank(const Step& step) {
  Step exchanged = step;
  exchanged.n_experts = step.n_ranks;
  exchanged.experts_of_rank.clear();
  exchanged.num_seats = 0;
  exchanged.group_of_rank.clear();
  for (int rank = 0; rank < step.n_ranks; ++rank)
    for (int token = 0; token < step.num_tokens(rank); ++token) {
      std::vector<int> owners;
      for (int k = 0; k < step.top_k; ++k) {
        const size_t choice = static_cast<size_t>(token * step.top_k + k);
        const int id = step.topk_ids[rank][choice];
        // A bad id has no owner: the step breaks.
        int owner = id < 0 || id >= step.n_experts ? -1 : step.owner_of(rank, id);
        if (std::find(owners.begin(), owners.end(), owner) != owners.end()) owner = -1;
        owners.push_back(owner);
        exchanged.topk_ids[rank][choice] = owner;
        exchanged.topk_weights[rank][choice] = 1;
      }
    }
  return exchanged;
}

std::vector<bf16> rank_sum(const void* rank_sums, const Step&, int rank, int token_idx, int owner) {
  const auto& [step, expert, experts] = *static_cast<const RankSums*>(rank_sums);
  if (owner == step.n_ranks) return expert(experts, step, rank, token_idx, step.n_experts);
  std::vector<float> sums(static_cast<size_t>(step.hidden), 0.0f);
  for (int k = 0; k < step.top_k; ++k) {
    const int id = step.topk_ids[rank][token_idx * step.top_k + k];
    if (id < 0 || step.owner_of(rank, id) != owner) continue;
    const std::vector<bf16> row = expert(experts, step, rank, token_idx, id);
    for (size_t column = 0; column < sums.size(); ++column)
      sums[column] =
          sums[column] + step.topk_weights[rank][token_idx * step.top_k + k] * to_float(row[column]);
  }
  std::vector<bf16> rounded;
  for (const float sum : sums) rounded.push_back(to_bf16(sum));
  return rounded;
}

std::vector<std::vector<bf16>> moe_layer_per_rank(const Step& step, const MlpExperts& experts) {
  const Step seen = as_seen(step), exchanged = per_rank(seen);
  const RankSums sums{seen, &mlp_expert, &experts};
  std::vector<std::vector<bf16>> outputs(static_cast<size_t>(step.n_ranks));
  std::atomic<int> next = 0;
  on_all_cores([&] {
    for (int rank = next++; rank < step.n_ranks; rank = next++)
      outputs[static_cast<size_t>(rank)] = combine_weighted(exchanged, rank, &rank_sum, &sums);
  });
  return outputs;
}

std::string check_choices(const Step& step, int rank, const DispatchResult& result) {
  const int group = step.has_shared_expert ? 1 : 0;
  const std::vector<RowOrigin> rows = dispatched_rows(per_rank(step), rank)[group];
  for (size_t i = 0; i < rows.size(); ++i)
    for (int k = 0; k < step.top_k; ++k) {
      const size_t row = result.row_offsets[group] + i;
      const size_t got = row * static_cast<size_t>(step.top_k) + static_cast<size_t>(k);
      const int token = result.src_info[2 * row], choice = token * step.top_k + k;
      const int id = step.topk_ids[rows[i].src_rank][choice];
      int seat = -1;
      for (int s = 0; id >= 0 && s < step.n_local_experts(); ++s)
        if (step.reaches(rows[i].src_rank, id, rank) && step.expert_at(rank, s) == id) seat = s;
      const float weight = seat < 0 ? 0.0f : step.topk_weights[rows[i].src_rank][choice];
      const std::string where = "rank " + std::to_string(rank) + ", row " + std::to_string(row) +
                                ", choice " + std::to_string(k) + ": ";
      if (!result.row_experts.empty() && result.row_experts[got] != seat)
        return where + "row_experts is " + std::to_string(result.row_experts[got]) + ", expected " +
               std::to_string(seat);
      if (!result.row_weights.empty() && result.row_weights[got] != weight)
        return where + "row_weights is " + std::to_string(result.row_weights[got]) + ", expected " +
               std::to_string(weight);
    }
  return "";
}

}  // namespace switchyard::reference
