// Steps in flight: several steps under way at once on one ExpertParallel, each in a flight of its own, and
// sends that return before any peer has come.
#include "flights.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

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
