// Steps in flight: several steps under way at once on one ExpertParallel, each in a flight of its own, and
// sends that return before any peer has come.
#include <algorithm>

#include "ep_harness.hpp"
#include "reference/per_rank.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

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
        stalled.launch(stalled.kernels().stall, {.num_blocks = 1, .num_threads = 32}, {50'000'000}).ok());
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

class StepsInFlight : public testing::TestWithParam<std::tuple<TargetChoice, Protocol>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(options().target); }
  RunOptions options() const {
    return {.target = std::get<0>(GetParam()), .protocol = std::get<1>(GetParam())};
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, StepsInFlight, testing::Combine(all_targets(), both_protocols()),
                         [](const auto& info) {
                           return target_name(std::get<0>(info.param)) +
                                  protocol_name(std::get<1>(info.param));
                         });

TEST_P(StepsInFlight, InterleaveInAnyOrder) {
  for (const int num_flights : {2, 3}) {
    Flights flights(options(), 2, num_flights);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      flights.prepare(seed);
      EXPECT_EQ(flights.run(flights.drawn_order(seed)), "") << num_flights << " flights, seed " << seed;
    }
  }
}

TEST_P(StepsInFlight, InterleaveOverAWire) {
  RunOptions wired = options();
  wired.p2p_world_size = 1;
  Flights flights(wired);
  EXPECT_EQ(flights.run({0, 1, 1, 0, 0, 1, 1, 0}), "");
}

// What a rank keeps for fetch_choices exists once for each flight.
TEST_P(StepsInFlight, InterleaveWithRowsPerRank) {
  if (options().protocol != Protocol::kDirect) GTEST_SKIP() << "rows per rank need the direct protocol";
  RunOptions per_rank = options();
  per_rank.row_layout = RowLayout::kPerRank;
  Flights flights(per_rank);
  EXPECT_EQ(flights.run({0, 1, 1, 0, 0, 1, 1, 0}), "");
  flights.prepare(2);
  EXPECT_EQ(flights.run({0, 1, 0, 1, 1, 1, 0, 0}), "");
}

// Of the flights' streams none is ordered behind another, nor behind the rank's own.
TEST_P(StepsInFlight, HaveStreamsOfTheCallers) {
  for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kPerRank}) {
    if (layout == RowLayout::kPerRank && options().protocol != Protocol::kDirect) continue;
    RunOptions with_layout = options();
    with_layout.row_layout = layout;
    Flights flights(with_layout);
    flights.give_streams();
    for (uint64_t seed = 0; seed < 3; ++seed) {
      flights.prepare(seed);
      flights.stall(0);
      EXPECT_EQ(flights.run(flights.drawn_order(seed)), "") << "seed " << seed;
      for (int flight = 0; flight < 2; ++flight) EXPECT_TRUE(flights.ep(flight).poll(0).ok());
    }
    EXPECT_TRUE(flights.ep(0).warm_up().ok());
  }
}

// Links exist once for each flight, too.
TEST_P(StepsInFlight, InterleaveWithRowsThatTheReceiverFills) {
  if (options().protocol != Protocol::kDirect) GTEST_SKIP() << "links are the direct protocol's";
  RunOptions received = options();
  received.row_delivery = RowDelivery::kReceiver;
  Flights flights(received);
  EXPECT_EQ(flights.run({0, 1, 1, 0, 0, 1, 1, 0}), "");
  flights.prepare(2);
  EXPECT_EQ(flights.run({0, 1, 0, 1, 1, 1, 0, 0}), "");
}

TEST_P(StepsInFlight, AreCountedInMemory) {
  const ExpertParallelConfig two = Flights::config(options(), 2), one = Flights::config(options(), 1);
  const MemoryNeeded needed = must(ExpertParallel::memory_needed(two, 2));
  EXPECT_EQ(needed.total(), 2 * must(ExpertParallel::memory_needed(one, 2)).total());
  Flights flights(options());
  EXPECT_EQ(flights.ep(0).bytes_per_rank(), needed.total());
  EXPECT_EQ(flights.ep(1).bytes_per_rank(), needed.total());
}

TEST_P(StepsInFlight, BreakTogetherAndAreResetTogether) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  Flights flights(options());
  const Buffer<int32_t> bad_ids = flights.bad_ids_of(/*rank=*/1);
  DispatchInput input = flights.input(1, 1);
  input.topk_ids_64 = nullptr;
  input.topk_ids = bad_ids.data();
  ASSERT_TRUE(flights.ep(1).dispatch_async(1, input).ok());
  ASSERT_TRUE(flights.launch(1, kDispatchAsync, 0).ok());
  const Status broken = flights.ep(0).synchronize();
  EXPECT_EQ(flights.ep(1).poll(0).message(), flights.ep(0).poll(0).message());
  EXPECT_NE(flights.ep(1).poll(1).message().find("holds 99"), std::string::npos);
  EXPECT_NE(broken.message().find("topk_ids of rank 1 holds 99"), std::string::npos) << broken.to_string();
  const Status refused = flights.launch(0, kDispatchAsync, 0);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(flights.ep(1).reset().ok());
  EXPECT_EQ(flights.run({0, 1, 0, 1, 1, 1, 0, 0}), "");
}

TEST_P(StepsInFlight, GoOnWithFewerRanks) {
  Flights flights(options(), 3);
  EXPECT_EQ(flights.run({0, 1, 0, 1, 1, 1, 0, 0}), "");
  ASSERT_TRUE(flights.ep(0).reset({0, 1}).ok());
  flights.prepare(2);
  EXPECT_EQ(flights.run({1, 0, 0, 1, 1, 1, 0, 0}), "");
}

TEST_P(StepsInFlight, CountRowsTogether) {
  RunOptions counting = options();
  counting.counts_experts = true;
  counting.max_experts_per_rank = 4;
  Flights flights(counting);
  ASSERT_EQ(flights.run({0, 1, 0, 1, 1, 1, 0, 0}), "");
  std::vector<int64_t> expected(Flights::kNumExperts);
  for (int flight = 0; flight < 2; ++flight)
    for (const int id : flights.step(flight).topk_ids[1]) ++expected[static_cast<size_t>(id)];
  EXPECT_EQ(must(flights.ep(1).expert_counts(1)), expected);
  ASSERT_TRUE(flights.ep(1).set_placement(must(ExpertPlacement::from_lists(4, {{3, 1}, {0, 2, 3}}))).ok());
  EXPECT_EQ(must(flights.ep(0).expert_counts(1)), expected);
}

TEST_P(StepsInFlight, CountRowsTogetherAfterAReset) {
  RunOptions counting = options();
  counting.counts_experts = true;
  Flights flights(counting, 3);
  std::vector<int64_t> expected(Flights::kNumExperts);
  const auto run = [&](uint64_t seed) {
    flights.prepare(seed);
    EXPECT_EQ(flights.run({0, 1, 0, 1, 1, 1, 0, 0}), "");
    for (int flight = 0; flight < 2; ++flight)
      for (const int id : flights.step(flight).topk_ids[1]) ++expected[static_cast<size_t>(id)];
    EXPECT_EQ(must(flights.ep(1).expert_counts(1)), expected);
  };
  run(1);
  ASSERT_TRUE(flights.ep(0).reset_to({0, 1}).ok());
  run(2);
  ASSERT_TRUE(flights.ep(0).reset_to({0, 1, 2}).ok());
  run(3);
}

TEST_P(StepsInFlight, WarmUpInEveryLayout) {
  for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kMasked, RowLayout::kPerRank}) {
    if (layout == RowLayout::kPerRank && options().protocol != Protocol::kDirect) continue;
    RunOptions with_layout = options();
    with_layout.row_layout = layout;
    Flights flights(with_layout);
    const Status warm = flights.ep(0).warm_up();
    EXPECT_TRUE(warm.ok()) << to_string(layout) << ": " << warm.to_string();
  }
}

// Flight 1 waits for a peer on the rank's own stream; flight 0 has ended on the caller's.
TEST_P(StepsInFlight, AreNotWaitedForByTheStreamOfAnother) {
  Flights flights(options());
  flights.give_streams();
  ASSERT_TRUE(flights.ep(1).dispatch_async(0, flights.input(1, 0)).ok());  // on the rank's own
  for (int phase = 0; phase < kNumPhases; ++phase)
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(flights.launch(0, phase, rank).ok());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_TRUE(flights.ep(0).synchronize(rank, flights.stream_of(0, rank)).ok());
  ASSERT_TRUE(flights.ep(1).dispatch_async(1, flights.input(1, 1)).ok());
  for (int phase = kDispatchWait; phase < kNumPhases; ++phase)
    for (int rank = 0; rank < 2; ++rank) {
      // What was sent on the ranks' own streams comes first.
      if (phase == kDispatchWait) {
        ASSERT_TRUE(flights.ep(1).synchronize(rank, Stream()).ok());
      }
      ASSERT_TRUE(flights.launch(1, phase, rank).ok());
    }
  EXPECT_EQ(flights.finish(), "");
}

// The mutant: a flight's messages, or rows, go where those of the other are.
TEST_P(StepsInFlight, DoNotShareReceiveBuffers) {
  RunOptions simulated = options();
  if (simulated.target != TargetChoice::kHost) GTEST_SKIP() << "a mutant may leave its memory";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the mutant is a race";
#endif
  Flights flights(simulated);
  ExpertParallelTestAccess::use_receive_buffers_of(flights.ep(1), flights.ep(0));
  ASSERT_TRUE(ExpertParallelTestAccess::poison_receive_buffers(flights.ep(0), 0xdd).ok());
  EXPECT_NE(flights.run({0, 1, 0, 1, 0, 1, 0, 1}), "");
}

TEST(StepsInFlightArguments, AreChecked) {
  Flights flights({});
  EXPECT_EQ(flights.ep(0).flight(2).status().message(),
            "flight: flight_idx is 2; it must be 0..1 (steps_in_flight)");
  EXPECT_EQ(flights.ep(0).flight(-1).status().message(),
            "flight: flight_idx is -1; it must be 0..1 (steps_in_flight)");
  EXPECT_EQ(flights.ep(0).enable_trace(8).message(),
            "enable_trace: steps_in_flight is 2; only single steps can be traced");
  const Result<MemoryNeeded> refused = ExpertParallel::memory_needed(Flights::config({}, 9), 2);
  EXPECT_EQ(refused.status().message(), "steps_in_flight is 9; it must be 1..8");
}

// Slotted. Virtual time: the deadline costs nothing.
RunOptions simulated_sends(uint64_t seed) {
  return {.host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true},
          .timeout_ns = 1'000'000'000};
}

TEST(SendsThatReturn, DoNotWaitForAPeerThatNeverComes) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  Flights flights(simulated_sends(1));
  for (int flight = 0; flight < 2; ++flight)
    ASSERT_TRUE(flights.launch(flight, kDispatchAsync, /*rank=*/0).ok());
  EXPECT_TRUE(flights.ep(0).synchronize(0).ok());  // both have ended
  ASSERT_TRUE(flights.launch(1, kDispatchWait, 0).ok());
  const Status late = flights.ep(1).synchronize(0);
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(late.message().find("for rank 1"), std::string::npos) << late.to_string();
}

// Each rank sends in an order of its own: nobody waits, so nothing holds up what the other waits for.
TEST(SendsThatReturn, MayComeInAnotherOrderOnEachRank) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Flights flights(simulated_sends(seed));
    for (const int flight : {0, 1}) ASSERT_TRUE(flights.launch(flight, kDispatchAsync, 0).ok());
    for (const int flight : {1, 0}) ASSERT_TRUE(flights.launch(flight, kDispatchAsync, 1).ok());
    for (const int flight : {0, 1}) ASSERT_TRUE(flights.launch(flight, kDispatchWait, 0).ok());
    for (const int flight : {1, 0}) ASSERT_TRUE(flights.launch(flight, kDispatchWait, 1).ok());
    for (const int flight : {1, 0}) ASSERT_TRUE(flights.launch(flight, kCombineAsync, 0).ok());
    for (const int flight : {0, 1}) ASSERT_TRUE(flights.launch(flight, kCombineAsync, 1).ok());
    for (const int flight : {0, 1})
      for (const int rank : {0, 1}) ASSERT_TRUE(flights.launch(flight, kCombineWait, rank).ok());
    EXPECT_EQ(flights.finish(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace switchyard
