// A step for the examples: tokens that every rank has alike, each for two experts, and the buffers of all
// ranks.
#pragma once

#include <vector>

#include "need.hpp"
#include "switchyard/expert_parallel.hpp"

namespace example {

using namespace switchyard;

struct SampleStep {
  static constexpr int kRanks = 8, kExperts = 16, kTopK = 2, kHidden = 256, kTokens = 12;

  struct RankData {
    RowBuffers rows;
    Buffer<bf16> tokens, output;
    Buffer<int32_t> topk_ids, expert_ids;
    Buffer<float> topk_weights;
    Buffer<uint32_t> row_offsets;
  };
  std::vector<bf16> tokens;
  std::vector<RankData> ranks;

  static ExpertParallelConfig config() {
    return {.n_experts = kExperts, .top_k = kTopK, .hidden = kHidden, .max_tokens_per_rank = kTokens};
  }

  SampleStep(World& world, ExpertParallel& ep) : tokens(kTokens * kHidden) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = to_bf16(static_cast<float>(i * 37 % 201) - 100.0f);
    std::vector<int32_t> topk_ids(kTokens * kTopK);
    for (size_t i = 0; i < topk_ids.size(); ++i) topk_ids[i] = static_cast<int32_t>(i * 3 % kExperts);
    for (int r = 0; r < kRanks; ++r) {
      const Rank& rank = world.rank(r);
      ranks.push_back({need(ep.row_buffers(r)), need(rank.upload(tokens)),
                       need(rank.allocate<bf16>(tokens.size())), need(rank.upload(topk_ids)),
                       need(rank.allocate<int32_t>(kExperts / kRanks)),
                       need(rank.upload(std::vector<float>(topk_ids.size(), 0.25f))),
                       need(rank.allocate<uint32_t>(kExperts / kRanks + 1))});
    }
  }

  DispatchInput input(int rank) const {
    return {ranks[rank].tokens.data(), ranks[rank].topk_ids.data(), kTokens};
  }
  DispatchOutput output(int rank) const {
    const RankData& data = ranks[rank];
    return {data.rows.encoded_rows,  data.rows.src_info,     data.rows.max_rows,
            data.row_offsets.data(), data.expert_ids.data(), data.rows.scales};
  }
  // Of experts that return what they get.
  CombineInput expert_output(int rank) const { return {ranks[rank].rows.rows, ranks[rank].rows.src_info}; }
  CombineOutput combined(int rank, const CombineDestination& destination) const {
    return {ranks[rank].topk_ids.data(), ranks[rank].topk_weights.data(), kTokens, destination};
  }

  // Whether each value is the token's, times `factor`, rounded once.
  bool is_tokens_times(float factor, const std::vector<bf16>& values) const {
    for (size_t i = 0; i < tokens.size(); ++i)
      if (values[i] != to_bf16(factor * to_float(tokens[i]))) return false;
    return true;
  }
};

}  // namespace example
