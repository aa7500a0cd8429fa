#include "expert_rows.hpp"

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

std::vector<double> rows_of_experts(const Workload& workload) {
  std::vector<double> rows(static_cast<size_t>(workload.n_experts));
  for (const std::vector<int32_t>& ids : sampled_ids(workload))
    for (const int32_t id : ids)
      if (id >= 0) ++rows[static_cast<size_t>(id)];
  return rows;
}

}  // namespace switchyard::tools
