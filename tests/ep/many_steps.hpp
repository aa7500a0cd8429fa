// Steps of the direct protocol whose inputs and outputs lie side by side.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "step_runner.hpp"
#include "step_test.hpp"

namespace switchyard::testing_support {

// Several steps, each with memory of its own, so that nothing but the kernels keeps one from the next.
class ManySteps {
 public:
  static constexpr int kNumTokens = 6, kHidden = 128, kTopK = 3, kNumExperts = 6;

  struct Size {
    int n_ranks = 3;
    int row_sets = 1;
    TokenFormatKind format = TokenFormatKind::kBF16;
    int num_tokens = kNumTokens;
    int max_tokens = 0;  // 0: num_tokens
  };
  ManySteps(RowLayout layout, TargetChoice target, int num_steps, HostDeviceOptions host, const Size& size)
      : num_tokens(size.num_tokens),
        world(must(World::create({.target = target, .n_ranks = size.n_ranks, .host = host}))) {
    const int n_ranks = size.n_ranks;
    ep = must(ExpertParallel::create(*world, {.n_experts = kNumExperts,
                                              .top_k = kTopK,
                                              .hidden = kHidden,
                                              .max_tokens_per_rank = std::max(num_tokens, size.max_tokens),
                                              .n_sms = 2,
                                              .num_threads = 64,
                                              .timeout_ns = 60'000'000'000,
                                              .protocol = Protocol::kDirect,
                                              .row_layout = layout,
                                              .row_sets = size.row_sets,
                                              .dispatch_format = size.format}));
    const Shape shape{.n_ranks = n_ranks,
                      .n_experts = kNumExperts,
                      .top_k = kTopK,
                      .hidden = kHidden,
                      .tokens_per_rank = std::vector<int>(static_cast<size_t>(n_ranks), num_tokens)};
    for (int i = 0; i < num_steps; ++i) {
      steps.push_back(make_step(shape, 70 + static_cast<uint64_t>(i)));
      memory_.emplace_back();
      for (int rank = 0; rank < n_ranks; ++rank) memory_.back().push_back(make_memory(i, rank));
    }
  }

  ManySteps(RowLayout layout, TargetChoice target, int num_steps, HostDeviceOptions host = {})
      : ManySteps(layout, target, num_steps, host, Size{}) {}

  // Ranks choose different sets of rows.
  int row_set(int step, int rank) const { return (step + 2 * rank) % ep->config().row_sets; }
  DispatchInput input(int step, int rank) {
    const Memory& own = at(step, rank);
    DispatchInput input{own.tokens.data(), own.ids.data(), num_tokens, own.weights.data()};
    input.row_set = row_set(step, rank);
    return input;
  }
  DispatchOutput output(int step, int rank) {
    const Memory& own = at(step, rank);
    return {.row_offsets = own.offsets.data(),
            .expert_ids = own.expert_ids.data(),
            .row_counts = own.counts.data(),
            .row_experts = is_per_rank() ? own.row_experts.data() : nullptr,
            .expert_totals = is_per_rank() ? own.expert_totals.data() : nullptr,
            .source_ranges = own.ranges.data(),
            .row_totals = own.totals.data()};
  }
  Status dispatch(int step, int rank) { return ep->dispatch(rank, input(step, rank), output(step, rank)); }
  Status combine(int step, int rank, Buffer<bf16>& output, const void* rows = nullptr) {
    const Memory& own = at(step, rank);
    return ep->combine(
        rank, {.expert_rows = rows},
        {own.ids.data(), own.weights.data(), num_tokens, {CombineReduction::kWeighted, output.data()}});
  }
  Status combine_rows(int step, int rank) {
    return combine(step, rank, at(step, rank).output, must(ep->row_buffers(rank)).rows);
  }
  // Where row r of the step's dispatch holds the value of `scale` times that of its token.
  Buffer<bf16> scaled_rows(int rank, float scale) {
    const RowBuffers own = must(ep->row_buffers(rank));
    const size_t size = size_t{own.max_rows} * kHidden;
    std::vector<bf16> rows = must(world->rank(rank).view(own.rows, size).download());
    for (bf16& value : rows) value = to_bf16(to_float(value) * scale);
    return must(world->rank(rank).upload(rows));
  }
  std::vector<bf16> expected(int step, int rank, float scale = 1) const {
    std::vector<bf16> sums = reference::combine_weighted(
        is_per_rank() ? by_rank(steps[static_cast<size_t>(step)]) : steps[static_cast<size_t>(step)], rank,
        [](const void*, const reference::Step& given, int r, int token_idx, int k) {
          return same_row(nullptr, given, r, token_idx, k);
        },
        nullptr);
    for (bf16& value : sums) value = to_bf16(to_float(value) * scale);
    return sums;
  }

  struct Memory {
    Buffer<bf16> tokens, output;
    Buffer<int32_t> ids, expert_ids, row_experts, expert_totals, totals;
    Buffer<float> weights;
    Buffer<uint32_t> offsets, counts;
    Buffer<uint64_t> ranges;
  };
  Memory& at(int step, int rank) { return memory_[static_cast<size_t>(step)][static_cast<size_t>(rank)]; }
  bool is_per_rank() const { return ep->config().row_layout == RowLayout::kPerRank; }

  const int num_tokens;  // of each rank
  std::unique_ptr<World> world;
  std::unique_ptr<ExpertParallel> ep;
  std::vector<reference::Step> steps;

 private:
  // Per rank a token comes back once from each of its ranks, and is not weighted.
  static reference::Step by_rank(reference::Step step) {
    const int n_local = step.n_experts / step.n_ranks;
    for (size_t rank = 0; rank < step.topk_ids.size(); ++rank)
      for (size_t i = 0; i < step.topk_ids[rank].size(); ++i) {
        std::vector<int32_t>& ids = step.topk_ids[rank];
        const size_t first = i / kTopK * kTopK;
        for (size_t k = first; k < i; ++k)
          if (ids[i] >= 0 && ids[k] >= 0 && ids[k] / n_local == ids[i] / n_local) ids[i] = -1;
        step.topk_weights[rank][i] = 1;
      }
    return step;
  }
  Memory make_memory(int step, int rank) {
    const reference::Step& given = steps[static_cast<size_t>(step)];
    const Rank& owner = world->rank(rank);
    const auto groups = static_cast<size_t>(ep->num_groups()), ranks = static_cast<size_t>(ep->n_ranks());
    const auto i = static_cast<size_t>(rank);
    return {
        .tokens = must(owner.upload(given.tokens[i])),
        .output = must(owner.allocate<bf16>(static_cast<size_t>(num_tokens) * kHidden)),
        .ids = must(owner.upload(given.topk_ids[i])),
        .expert_ids = must(owner.allocate<int32_t>(groups)),
        .row_experts = must(owner.allocate<int32_t>(must(ep->row_buffers(rank)).max_rows * size_t{kTopK})),
        .expert_totals =
            must(owner.upload(std::vector<int32_t>(1 + static_cast<size_t>(ep->n_local_experts()), 50))),
        .totals = must(owner.upload(std::vector<int32_t>(groups, 1000))),
        .weights = must(owner.upload(given.topk_weights[i])),
        .offsets = must(owner.allocate<uint32_t>(groups + 1)),
        .counts = must(owner.allocate<uint32_t>(groups)),
        .ranges = must(owner.allocate<uint64_t>(groups * ranks))};
  }

  std::vector<std::vector<Memory>> memory_;  // [step][rank]
};

}  // namespace switchyard::testing_support
