// A world, its buffers and steps between them whose experts return what they get, one launch at a time: for
// tests of the order in which things are enqueued.
#pragma once

#include <algorithm>
#include <numeric>

#include "ep_harness.hpp"

namespace switchyard::testing_support {

inline std::vector<bf16> same_row(const void*, const reference::Step& step, int rank, int token_idx, int) {
  const auto token = step.tokens[rank].begin() + static_cast<ptrdiff_t>(token_idx) * step.hidden;
  return {token, token + step.hidden};
}

class StepRunner {
 public:
  // Few small blocks, unless `launch` says otherwise; 0 is the library's choice.
  struct Launch {
    int n_sms = 2;
    int num_threads = 64;
    bool dependent = false;
    std::optional<ExpertPlacement> placement = {};
    bool counts_experts = false;
    RowLayout row_layout = RowLayout::kRagged;
  };

  StepRunner(const Shape& shape, std::tuple<TargetChoice, Protocol> variant, HostDeviceOptions host = {})
      : StepRunner(shape, variant, Launch{}, host) {}
  StepRunner(const Shape& shape, std::tuple<TargetChoice, Protocol> variant, const Launch& launch,
             HostDeviceOptions host = {})
      : shape_(shape) {
    const auto [target, protocol] = variant;
    world = must(World::create({.target = target, .n_ranks = shape.n_ranks, .host = host}));
    ep = must(ExpertParallel::create(*world, {.n_experts = shape.n_experts,
                                              .top_k = shape.top_k,
                                              .hidden = shape.hidden,
                                              .max_tokens_per_rank = shape.tokens_per_rank.front(),
                                              .n_sms = launch.n_sms,
                                              .num_threads = launch.num_threads,
                                              .timeout_ns = 20'000'000'000,
                                              .dependent_launch = launch.dependent,
                                              .protocol = protocol,
                                              .row_layout = launch.row_layout,
                                              .placement = launch.placement,
                                              .counts_experts = launch.counts_experts}));
    std::vector<int> members(static_cast<size_t>(shape.n_ranks));
    std::iota(members.begin(), members.end(), 0);
    allocate(members);
  }

  // New buffers, for these ranks of the world: after a reset with others.
  void allocate(const std::vector<int>& members) {
    shape_.n_ranks = static_cast<int>(members.size());
    shape_.tokens_per_rank.resize(members.size(), shape_.tokens_per_rank.front());
    ranks_.clear();
    const size_t tokens = static_cast<size_t>(shape_.tokens_per_rank.front());
    const size_t top_k = static_cast<size_t>(shape_.top_k), hidden = static_cast<size_t>(shape_.hidden);
    const size_t n_local = static_cast<size_t>(ep->n_local_experts());
    for (int rank = 0; rank < shape_.n_ranks; ++rank) {
      Rank& owner = world->rank(members[static_cast<size_t>(rank)]);
      const RowBuffers rows = must(ep->row_buffers(rank));
      ranks_.push_back(
          {.tokens = must(owner.allocate<bf16>(tokens * hidden)),
           .rows = owner.view(rows.rows, rows.max_rows * hidden),
           .expert_outputs =
               owner.view(rows.expert_outputs, rows.expert_outputs == nullptr ? 0 : rows.max_rows * hidden),
           .output = must(owner.allocate<bf16>(tokens * hidden)),
           .topk_ids = must(owner.allocate<int32_t>(tokens * top_k)),
           .src_info = owner.view(rows.src_info, size_t{2} * rows.max_rows),
           .expert_ids = must(owner.allocate<int32_t>(n_local)),
           .row_experts = must(owner.allocate<int32_t>(is_per_rank() ? rows.max_rows * top_k : 0)),
           .topk_weights = must(owner.allocate<float>(tokens * top_k)),
           .row_offsets = must(owner.allocate<uint32_t>(n_local + 1))});
    }
  }

  // Outputs are poisoned, so that what a replay does not write shows.
  void upload(const reference::Step& step) {
    for (int rank = 0; rank < shape_.n_ranks; ++rank) {
      Buffers& buffers = ranks_[rank];
      ASSERT_TRUE(buffers.tokens.upload(step.tokens[rank]).ok());
      ASSERT_TRUE(buffers.topk_ids.upload(step.topk_ids[rank]).ok());
      ASSERT_TRUE(buffers.topk_weights.upload(step.topk_weights[rank]).ok());
      ASSERT_TRUE(buffers.rows.fill_bytes(0xee).ok());
      ASSERT_TRUE(buffers.expert_outputs.fill_bytes(0xee).ok());
      ASSERT_TRUE(buffers.src_info.fill_bytes(0xee).ok());
      ASSERT_TRUE(buffers.row_offsets.fill_bytes(0xee).ok());
      ASSERT_TRUE(buffers.row_experts.fill_bytes(0xee).ok());
      ASSERT_TRUE(buffers.output.fill_bytes(0xee).ok());
    }
  }

  // Launches only: what a capture may hold.
  Status enqueue_step(StepMode mode) {
    for (int rank = 0; rank < shape_.n_ranks; ++rank)
      SWITCHYARD_RETURN_IF_ERROR(enqueue_dispatch(rank, mode));
    for (int rank = 0; rank < shape_.n_ranks; ++rank) SWITCHYARD_RETURN_IF_ERROR(enqueue_combine(rank, mode));
    return Status();
  }
  Status enqueue_dispatch(int rank, StepMode mode) {
    if (mode == StepMode::kFused)
      return ep->dispatch(rank, dispatch_input(rank), dispatch_output(rank), stream_of(rank));
    SWITCHYARD_RETURN_IF_ERROR(enqueue_dispatch_async(rank));
    return enqueue_dispatch_wait(rank);
  }
  Status enqueue_dispatch_async(int rank) {
    return ep->dispatch_async(rank, dispatch_input(rank), stream_of(rank));
  }
  Status enqueue_dispatch_wait(int rank) {
    return ep->dispatch_wait(rank, dispatch_output(rank), stream_of(rank));
  }
  Status enqueue_combine(int rank, StepMode mode) {
    Buffers& buffers = ranks_[rank];
    const CombineInput input{has_expert_outputs ? buffers.expert_outputs.data() : buffers.rows.data(),
                             buffers.src_info.data()};
    const CombineOutput output{buffers.topk_ids.data(),
                               buffers.topk_weights.data(),
                               shape_.tokens_per_rank[rank],
                               {CombineReduction::kWeighted, buffers.output.data()}};
    if (mode == StepMode::kFused) return ep->combine(rank, input, output, stream_of(rank));
    SWITCHYARD_RETURN_IF_ERROR(ep->combine_async(rank, input, stream_of(rank)));
    return ep->combine_wait(rank, output, stream_of(rank));
  }

  void check(const reference::Step& step) {
    for (int rank = 0; rank < shape_.n_ranks; ++rank) {
      Buffers& buffers = ranks_[rank];
      reference::DispatchResult result{
          must(buffers.row_offsets.download()), must(buffers.expert_ids.download()), {}, {}};
      const size_t num_rows = std::min<size_t>(result.row_offsets.back(), buffers.src_info.size() / 2);
      result.src_info = must(buffers.src_info.download(2 * num_rows));
      result.rows = must(buffers.rows.download(num_rows * static_cast<size_t>(shape_.hidden)));
      ASSERT_EQ(reference::check_dispatch(step, rank, result), "");
      const std::vector<bf16> expected = reference::combine_weighted(step, rank, &same_row, nullptr);
      ASSERT_EQ(must(buffers.output.download(expected.size())), expected) << "rank " << rank;
    }
  }

  DispatchInput dispatch_input(int rank) {
    return {ranks_[rank].tokens.data(), ranks_[rank].topk_ids.data(), shape_.tokens_per_rank[rank],
            ranks_[rank].topk_weights.data()};
  }
  DispatchOutput dispatch_output(int rank) {
    Buffers& buffers = ranks_[rank];
    return {.rows = buffers.rows.data(),
            .src_info = buffers.src_info.data(),
            .max_rows = static_cast<uint32_t>(buffers.src_info.size() / 2),
            .row_offsets = buffers.row_offsets.data(),
            .expert_ids = buffers.expert_ids.data(),
            .row_experts = is_per_rank() ? buffers.row_experts.data() : nullptr};
  }

  Stream stream_of(int rank) const { return streams.empty() ? Stream() : streams[static_cast<size_t>(rank)]; }
  // Where the ranks' combined tokens are.
  const Buffer<bf16>& output_of(int rank) const { return ranks_[static_cast<size_t>(rank)].output; }
  const Buffer<bf16>& tokens_of(int rank) const { return ranks_[static_cast<size_t>(rank)].tokens; }
  const Buffer<int32_t>& row_experts_of(int rank) const {
    return ranks_[static_cast<size_t>(rank)].row_experts;
  }

  std::unique_ptr<World> world;
  std::unique_ptr<ExpertParallel> ep;
  bool has_expert_outputs = false;  // a kernel of the test's leaves them; else combine takes the rows
  std::vector<Stream> streams;      // of the caller's, one for each rank; empty: the ranks' own

 private:
  bool is_per_rank() const { return ep->config().row_layout == RowLayout::kPerRank; }

  struct Buffers {
    Buffer<bf16> tokens, rows, expert_outputs, output;
    Buffer<int32_t> topk_ids, src_info, expert_ids, row_experts;
    Buffer<float> topk_weights;
    Buffer<uint32_t> row_offsets;
  };
  Shape shape_;
  std::vector<Buffers> ranks_;
};

}  // namespace switchyard::testing_support
