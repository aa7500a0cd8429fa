// A complete program: four ranks, each token goes to two experts and comes back as their weighted sum.
// The experts here return what they get, so every token must come back as it was.
#include <cstdio>
#include <vector>

#include "need.hpp"
#include "switchyard/expert_parallel.hpp"

using namespace switchyard;

struct RankData {
  RowBuffers rows;  // where the tokens of all ranks for this rank's experts arrive
  Buffer<bf16> tokens, output;
  Buffer<int32_t> topk_ids, expert_ids;
  Buffer<float> topk_weights;
  Buffer<uint32_t> row_offsets;
};

int main() {
  constexpr int kRanks = 4, kExperts = 8, kTopK = 2, kHidden = 256, kTokens = 16;
  auto world = need(World::create({.n_ranks = kRanks}));  // on a GPU if there is one, else in the emulator
  auto ep = need(ExpertParallel::create(
      *world, {.n_experts = kExperts, .top_k = kTopK, .hidden = kHidden, .max_tokens_per_rank = kTokens}));

  std::vector<bf16> tokens(kTokens * kHidden);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = to_bf16(static_cast<float>(i % 100));
  std::vector<int32_t> topk_ids(kTokens * kTopK);
  for (size_t i = 0; i < topk_ids.size(); ++i) topk_ids[i] = static_cast<int32_t>(i * 3 % kExperts);

  std::vector<RankData> data;
  for (int r = 0; r < kRanks; ++r) {
    Rank& rank = world->rank(r);
    data.push_back({need(ep->row_buffers(r)), need(rank.upload(tokens)),
                    need(rank.allocate<bf16>(tokens.size())), need(rank.upload(topk_ids)),
                    need(rank.allocate<int32_t>(kExperts / kRanks)),
                    need(rank.upload(std::vector<float>(topk_ids.size(), 0.5f))),
                    need(rank.allocate<uint32_t>(kExperts / kRanks + 1))});
  }
  for (int r = 0; r < kRanks; ++r) {
    RankData& d = data[r];
    need(ep->dispatch(
        r, {d.tokens.data(), d.topk_ids.data(), kTokens},
        {d.rows.rows, d.rows.src_info, d.rows.max_rows, d.row_offsets.data(), d.expert_ids.data()}));
    // Here a model would run its experts on d.rows.rows, grouped by d.row_offsets, on the same stream, and
    // leave what they make in d.rows.expert_outputs.
    need(ep->combine(
        r, {d.rows.rows, d.rows.src_info},
        {d.topk_ids.data(), d.topk_weights.data(), kTokens, {CombineReduction::kWeighted, d.output.data()}}));
  }
  need(ep->synchronize());  // a dead peer, a bad id or a full buffer is named here
  for (int r = 0; r < kRanks; ++r)
    if (need(data[r].output.download()) != tokens)
      return std::fprintf(stderr, "rank %d: wrong output\n", r), 1;
  std::printf("%d ranks, %d tokens each, to %d of %d experts and back: right\n", kRanks, kTokens, kTopK,
              kExperts);
}
