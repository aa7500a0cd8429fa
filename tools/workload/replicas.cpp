#include "replicas.hpp"

#include <algorithm>

#include "switchyard/detail/ep/shape.hpp"

namespace switchyard::tools {

namespace {

// The ids of each rank: all that a file says, else those of as many tokens as tell what is popular.
std::vector<std::vector<int32_t>> sampled_ids(const Workload& workload) {
  constexpr int kMaxTokens = 256;
  if (workload.routing == RoutingKind::kFile) return workload.file_ids;
  Workload sample = workload;
  sample.hidden = kHiddenMultiple;
  for (int& num_tokens : sample.tokens_per_rank) num_tokens = std::min(num_tokens, kMaxTokens);
  if (!has_router(sample)) return make_step(sample, 0).topk_ids;
  std::vector<std::vector<int32_t>> ids;
  const std::vector<std::vector<float>> logits = make_logits(sample, 0);
  for (size_t rank = 0; rank < logits.size(); ++rank)
    ids.push_back(
        reference::topk_softmax(logits[rank], sample.tokens_per_rank[rank], sample.n_experts, sample.top_k)
            .topk_ids);
  return ids;
}

}  // namespace

std::vector<uint64_t> rows_of_experts(const Workload& workload) {
  std::vector<uint64_t> rows(static_cast<size_t>(workload.n_experts));
  for (const std::vector<int32_t>& ids : sampled_ids(workload))
    for (const int32_t id : ids)
      if (id >= 0) ++rows[static_cast<size_t>(id)];
  return rows;
}

namespace {

// If every replica of an expert works on as many of its rows.
class Loads {
 public:
  Loads(const std::vector<std::vector<int>>& experts_of_rank, const std::vector<uint64_t>& rows_of_expert)
      : rows_of_replica_(rows_of_expert.begin(), rows_of_expert.end()),
        num_replicas_(rows_of_expert.size()),
        rows_of_rank_(experts_of_rank.size()) {
    for (const std::vector<int>& experts : experts_of_rank)
      for (const int expert : experts) ++num_replicas_[static_cast<size_t>(expert)];
    for (size_t expert = 0; expert < num_replicas_.size(); ++expert)
      rows_of_replica_[expert] /= num_replicas_[expert];
    for (size_t rank = 0; rank < experts_of_rank.size(); ++rank)
      for (const int expert : experts_of_rank[rank])
        rows_of_rank_[rank] += rows_of_replica_[static_cast<size_t>(expert)];
  }

  // The expert with most rows per replica of those that some rank does not hold; -1: there is none.
  int busiest_expert() const {
    int busiest = -1;
    for (size_t expert = 0; expert < num_replicas_.size(); ++expert)
      if (num_replicas_[expert] < static_cast<int>(rows_of_rank_.size()) &&
          (busiest < 0 || rows_of_replica_[expert] > rows_of_replica_[static_cast<size_t>(busiest)]))
        busiest = static_cast<int>(expert);
    return busiest;
  }
  double of_rank(size_t rank) const { return rows_of_rank_[rank]; }

 private:
  std::vector<double> rows_of_replica_;
  std::vector<int> num_replicas_;
  std::vector<double> rows_of_rank_;
};

}  // namespace

Result<ExpertPlacement> with_replicas(const ExpertPlacement& placement,
                                      const std::vector<uint64_t>& rows_of_expert, int num_replicas) {
  std::vector<std::vector<int>> experts_of_rank = placement.experts_of_rank();
  for (int i = 0; i < num_replicas; ++i) {
    const Loads loads(experts_of_rank, rows_of_expert);
    const int expert = loads.busiest_expert();
    if (expert < 0)
      return invalid_argument("%d replicas; all ranks hold all experts after %d", num_replicas, i);
    size_t idlest = experts_of_rank.size();
    for (size_t rank = 0; rank < experts_of_rank.size(); ++rank) {
      const std::vector<int>& held = experts_of_rank[rank];
      if (std::find(held.begin(), held.end(), expert) != held.end()) continue;
      if (idlest == experts_of_rank.size() || loads.of_rank(rank) < loads.of_rank(idlest)) idlest = rank;
    }
    experts_of_rank[idlest].push_back(expert);
  }
  return ExpertPlacement::from_lists(placement.n_experts(), std::move(experts_of_rank));
}

}  // namespace switchyard::tools
