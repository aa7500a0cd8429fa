// Steps in flight for tests: a step in each flight of an ExpertParallel, whose phases come in any order.
#pragma once

#include "ep_harness.hpp"
#include "reference/per_rank.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::testing_support {

enum SplitPhase { kDispatchAsync, kDispatchWait, kCombineAsync, kCombineWait, kNumPhases };

// A step in each flight, with the identity as experts, in place; any phase of any can come next.
class Flights {
 public:
  static constexpr int kNumTokens = 5, kHidden = 64, kTopK = 2, kNumExperts = 4;

  explicit Flights(const RunOptions& options, int n_ranks = 2, int num_flights = 2)
      : world_(must(World::create({.target = options.target, .n_ranks = n_ranks, .host = options.host}))) {
    ep_ = must(ExpertParallel::create(*world_, config(options, num_flights)));
    prepare(1);
  }
  static ExpertParallelConfig config(const RunOptions& options, int num_flights) {
    return {.n_experts = kNumExperts,
            .top_k = kTopK,
            .hidden = kHidden,
            .max_tokens_per_rank = kNumTokens,
            .n_sms = 2,
            .num_threads = 64,
            .timeout_ns = options.timeout_ns,
            .protocol = options.protocol,
            .row_layout = options.row_layout,
            .row_delivery = options.row_delivery,
            .p2p_world_size = options.p2p_world_size,
            .max_experts_per_rank = options.max_experts_per_rank,
            .counts_experts = options.counts_experts,
            .steps_in_flight = num_flights};
  }

  ExpertParallel& ep(int flight) { return *must(ep_->flight(flight)); }
  int num_flights() const { return ep_->config().steps_in_flight; }
  const reference::Step& step(int flight) const { return flights_[static_cast<size_t>(flight)].step; }

  // From now on each flight has a stream of the caller's on each rank.
  void give_streams() {
    for (int i = 0; i < num_flights() * ep_->n_ranks(); ++i)
      streams_.push_back(must(world_->rank(i % ep_->n_ranks()).create_stream()));
  }
  Stream stream_of(int flight, int rank) const {
    return streams_.empty() ? Stream() : streams_[static_cast<size_t>(flight * ep_->n_ranks() + rank)];
  }
  // Keeps the rank's own stream busy for a while.
  void stall(int rank) {
    const Rank& stalled = world_->rank(rank);
    EXPECT_TRUE(
        stalled.launch(kernel_table(stalled).stall, {.num_blocks = 1, .num_threads = 32}, {50'000'000}).ok());
  }

  // Draws a step for each flight.
  void prepare(uint64_t seed) {
    flights_.clear();
    flights_.resize(static_cast<size_t>(num_flights()));
    const int n_ranks = ep_->n_ranks();
    for (int i = 0; i < num_flights(); ++i) {
      Flight& flight = flights_[static_cast<size_t>(i)];
      flight.step = make_step({.n_ranks = n_ranks,
                               .n_experts = kNumExperts,
                               .top_k = kTopK,
                               .hidden = kHidden,
                               .tokens_per_rank = std::vector<int>(static_cast<size_t>(n_ranks), kNumTokens)},
                              seed * 100 + static_cast<uint64_t>(i));
      const size_t num_groups = static_cast<size_t>(ep_->num_groups());
      for (int r = 0; r < n_ranks; ++r) {
        const Rank& rank = world_->rank(r);
        flight.ranks.push_back({.tokens = must(reference::TokenTensors::create(rank, flight.step, kNumTokens,
                                                                               {.has_wide_ids = i % 2 == 1})),
                                .weights = must(rank.upload(flight.step.topk_weights[r])),
                                .row_offsets = must(rank.allocate<uint32_t>(num_groups + 1)),
                                .expert_ids = must(rank.allocate<int32_t>(num_groups)),
                                .row_experts = must(rank.allocate<int32_t>(num_choices(i, r))),
                                .row_weights = must(rank.allocate<float>(num_choices(i, r))),
                                .rows = must(ep(i).row_buffers(r))});
        EXPECT_TRUE(flight.ranks.back().tokens.upload(flight.step, r).ok());
      }
    }
  }
  DispatchInput input(int flight, int rank) const {
    const RankBuffers& buffers = flights_[static_cast<size_t>(flight)].ranks[static_cast<size_t>(rank)];
    return buffers.tokens.input(kNumTokens, buffers.weights.data());
  }
  Buffer<int32_t> bad_ids_of(int rank) const {
    return must(world_->rank(rank).upload(std::vector<int32_t>(kNumTokens * kTopK, 99)));
  }
  Status launch(int flight_idx, int phase, int rank) {
    Flight& flight = flights_[static_cast<size_t>(flight_idx)];
    RankBuffers& buffers = flight.ranks[static_cast<size_t>(rank)];
    ExpertParallel& ep = this->ep(flight_idx);
    const Stream stream = stream_of(flight_idx, rank);
    switch (phase) {
      case kDispatchAsync:
        return ep.dispatch_async(rank, input(flight_idx, rank), stream);
      case kDispatchWait:
        return ep.dispatch_wait(rank,
                                {.rows = buffers.rows.rows,
                                 .src_info = buffers.rows.src_info,
                                 .max_rows = buffers.rows.max_rows,
                                 .row_offsets = buffers.row_offsets.data(),
                                 .expert_ids = buffers.expert_ids.data(),
                                 .row_experts = is_per_rank() ? buffers.row_experts.data() : nullptr,
                                 .row_weights = is_per_rank() ? buffers.row_weights.data() : nullptr},
                                stream);
      case kCombineAsync:
        return ep.combine_async(rank, {buffers.rows.rows, buffers.rows.src_info}, stream);
      default:
        return ep.combine_wait(
            rank,
            {buffers.tokens.topk_ids(), buffers.weights.data(), kNumTokens, buffers.tokens.destination()},
            stream);
    }
  }
  // The flights of the phases that come next, on all ranks; then waits. What is wrong, or nothing.
  std::string run(const std::vector<int>& order) {
    std::vector<int> next_phase(flights_.size());
    for (const int flight : order) {
      const int phase = next_phase[static_cast<size_t>(flight)]++;
      for (int rank = 0; rank < ep_->n_ranks(); ++rank)
        if (const Status status = launch(flight, phase, rank); !status.ok()) return status.to_string();
    }
    return finish();
  }
  std::string finish() {
    if (const Status status = ep_->synchronize(); !status.ok()) return status.to_string();
    for (int flight = 0; flight < num_flights(); ++flight)
      for (int rank = 0; rank < ep_->n_ranks(); ++rank) {
        const RankBuffers& buffers = flights_[static_cast<size_t>(flight)].ranks[static_cast<size_t>(rank)];
        if (const std::string difference = compare_choices(flight, rank, buffers); !difference.empty())
          return "flight " + std::to_string(flight) + ": " + difference;
        const reference::Step exchanged = is_per_rank() ? reference::per_rank(step(flight)) : step(flight);
        if (must(buffers.tokens.output(kNumTokens)) !=
            reference::combine_weighted(exchanged, rank, &reference::identity_expert, nullptr))
          return "the output of flight " + std::to_string(flight) + " is wrong on rank " +
                 std::to_string(rank);
      }
    return "";
  }
  // An order that the seed draws.
  std::vector<int> drawn_order(uint64_t seed) const {
    std::vector<int> order;
    for (int i = 0; i < num_flights(); ++i) order.insert(order.end(), kNumPhases, i);
    std::mt19937_64 random(seed);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    return order;
  }

 private:
  struct RankBuffers {
    reference::TokenTensors tokens;
    Buffer<float> weights;
    Buffer<uint32_t> row_offsets;
    Buffer<int32_t> expert_ids;
    Buffer<int32_t> row_experts;  // of rows per rank, else empty
    Buffer<float> row_weights;
    RowBuffers rows;
  };
  struct Flight {
    reference::Step step;
    std::vector<RankBuffers> ranks;
  };

  bool is_per_rank() const { return ep_->config().row_layout == RowLayout::kPerRank; }
  size_t num_choices(int flight, int rank) {
    return is_per_rank() ? size_t{must(ep(flight).row_buffers(rank)).max_rows} * kTopK : 0;
  }
  std::string compare_choices(int flight, int rank, const RankBuffers& buffers) const {
    if (!is_per_rank()) return "";
    reference::DispatchResult result;
    result.row_offsets = must(buffers.row_offsets.download());
    result.src_info =
        must(world_->rank(rank).view(buffers.rows.src_info, 2 * size_t{buffers.rows.max_rows}).download());
    result.row_experts = must(buffers.row_experts.download());
    result.row_weights = must(buffers.row_weights.download());
    return reference::check_choices(step(flight), rank, result);
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<Flight> flights_;
  std::vector<Stream> streams_;  // [flight][rank]; empty: the ranks' own
};

}  // namespace switchyard::testing_support
