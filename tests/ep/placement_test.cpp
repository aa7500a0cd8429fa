// Steps with experts on any ranks: uneven numbers, ranks without experts, replicas, and placements that
// change between steps.
#include "reference/placement.hpp"

#include <numeric>

#include "format_sweep.hpp"
#include "step_runner.hpp"
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using testing_support::as_run;
using testing_support::both_protocols;
using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::must;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::step_formats;
using testing_support::StepMode;
using testing_support::StepRunner;

using Lists = std::vector<std::vector<int>>;

ExpertPlacement placement_of(int n_experts, Lists lists) {
  return must(ExpertPlacement::from_lists(n_experts, std::move(lists)));
}

// Uneven, one rank without experts, experts 1 and 4 on several ranks, seats out of order.
ExpertPlacement scattered() { return placement_of(6, {{4, 1}, {}, {5, 0, 1, 4}, {1, 3, 2}}); }

Shape four_ranks() {
  return {.n_ranks = 4, .n_experts = 6, .top_k = 3, .hidden = 128, .tokens_per_rank = {5, 3, 0, 4}};
}

class Placement : public testing::TestWithParam<Protocol> {
 protected:
  RunOptions options() const { return {.protocol = GetParam(), .placement = scattered()}; }
};

INSTANTIATE_TEST_SUITE_P(Protocols, Placement, both_protocols(),
                         [](const auto& info) { return testing_support::protocol_name(info.param); });

void run(const Shape& shape, const RunOptions& options) {
  EpHarness harness(shape, options);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    reference::Step step = as_run(make_step(shape, seed), options);
    step.topk_ids[0][1] = -1;
    step.topk_ids[0][3] = step.topk_ids[0][4];  // the same seat twice
    if (step.skips_all_to_all) step.topk_ids.assign(step.topk_ids.size(), step.topk_ids[0]);
    ASSERT_EQ(harness.run_and_compare(step), "") << "seed " << seed;
  }
}

TEST_P(Placement, RowsGoToTheSeatsOfAnyPlacement) {
  for (const StepMode mode : {StepMode::kSplit, StepMode::kFused}) {
    RunOptions scattered_options = options();
    scattered_options.mode = mode;
    run(four_ranks(), scattered_options);
  }
}

TEST_P(Placement, UnevenDivisionsNeedNoPlacement) {
  run({.n_ranks = 3, .n_experts = 7, .tokens_per_rank = {4, 1, 3}}, {.protocol = GetParam()});
  run({.n_ranks = 4, .n_experts = 2, .tokens_per_rank = {3, 1, 3, 2}}, {.protocol = GetParam()});
}

TEST_P(Placement, SeatsMayStayEmpty) {
  RunOptions reserving = options();
  reserving.max_experts_per_rank = 7;
  run(four_ranks(), reserving);
  run({.n_ranks = 2, .n_experts = 4, .tokens_per_rank = {4, 3}},
      {.protocol = GetParam(), .max_experts_per_rank = 3});
}

TEST_P(Placement, AnyFormatAndASharedExpert) {
  for (const TokenFormatKind format : step_formats()) {
    RunOptions of_format = options();
    of_format.format = format;
    of_format.shared_expert = SharedExpert::kFused;
    of_format.combine_format = format == TokenFormatKind::kFP8 ? CombineFormat::kFP8 : CombineFormat::kBF16;
    Shape shape = four_ranks();
    shape.hidden = std::max(128, info_of(format).hidden_multiple());
    SCOPED_TRACE(to_string(format));
    run(shape, of_format);
  }
}

TEST_P(Placement, ReplicasOfTheGroupComeFirst) {
  RunOptions wired = options();
  wired.p2p_world_size = 2;
  run(four_ranks(), wired);
  wired.format = TokenFormatKind::kNVFP4ByExpert;
  run(four_ranks(), wired);
}

TEST_P(Placement, OneReplicaWorksIfTheAllToAllIsSkipped) {
  RunOptions skipping = options();
  skipping.routing = Routing::kSkipAllToAll;
  skipping.shared_expert = SharedExpert::kFused;
  Shape shape = four_ranks();
  shape.tokens_per_rank = {5, 5, 5, 5};
  run(shape, skipping);
  skipping.format = TokenFormatKind::kNVFP4ByExpert;
  run(shape, skipping);
}

// Groups of ranks with tokens of their own, each with all experts; and ranks whose outputs the caller adds
// up.
TEST_P(Placement, GroupsOfRanksAddUpTheirOutputs) {
  RunOptions skipping = options();
  skipping.routing = Routing::kSkipAllToAll;
  skipping.shared_expert = SharedExpert::kFused;
  skipping.allreduce_world_size = 2;
  skipping.placement = placement_of(6, {{0, 1, 2, 5}, {3, 4, 5}, {5, 3}, {4, 2, 1, 0, 5}});
  Shape shape = four_ranks();
  shape.tokens_per_rank = {5, 5, 5, 5};
  EpHarness harness(shape, skipping);
  reference::Step step = as_run(make_step(shape, 1), skipping);
  const reference::Step other = as_run(make_step(shape, 2), skipping);
  for (const size_t rank : {size_t{2}, size_t{3}}) {
    step.tokens[rank] = other.tokens[rank];
    step.topk_ids[rank] = other.topk_ids[rank];
    step.topk_weights[rank] = other.topk_weights[rank];
  }
  ASSERT_EQ(harness.run_and_compare(step), "");
  skipping.placement.reset();
  skipping.allreduce_world_size = 1;
  shape.n_experts = 8;
  EpHarness alone(shape, skipping);
  ASSERT_EQ(alone.run_and_compare(as_run(make_step(shape, 3), skipping)), "");
  EXPECT_EQ(alone.ep().shared_expert_tokens(3, 5).num_tokens, 5);
  EXPECT_EQ(alone.ep().all_reduce(0, nullptr, 5).message(),
            "all_reduce: allreduce_world_size is 1, so the caller adds up; 0 or 4 lets all ranks do it");
  EXPECT_EQ(harness.ep().shared_expert_tokens(3, 5).first_token, 2);
}

TEST_P(Placement, ChangesBetweenSteps) {
  RunOptions changing = options();
  changing.max_experts_per_rank = 5;
  const Shape shape = four_ranks();
  EpHarness harness(shape, changing);
  const RowBuffers before = must(harness.ep().row_buffers(0));
  const uint64_t bytes_before = harness.ep().bytes_per_rank();
  const ExpertPlacement placements[] = {scattered(), placement_of(6, {{0, 1, 2, 3, 4}, {5}, {}, {0}}),
                                        must(ExpertPlacement::even(6, 4))};
  for (uint64_t seed = 1; const ExpertPlacement& placement : placements) {
    ASSERT_TRUE(harness.ep().set_placement(placement).ok());
    EXPECT_EQ(harness.ep().placement(), placement);
    reference::Step step = as_run(make_step(shape, seed++), changing);
    reference::place_experts(step, harness.ep());
    ASSERT_EQ(harness.run_and_compare(step), "");
  }
  EXPECT_EQ(must(harness.ep().row_buffers(0)).encoded_rows, before.encoded_rows);
  EXPECT_EQ(harness.ep().bytes_per_rank(), bytes_before);
}

TEST_P(Placement, GraphsReplayWithTheNewOne) {
  Shape shape = four_ranks();
  shape.tokens_per_rank = {5, 5, 5, 5};
  StepRunner runner(shape, {TargetChoice::kHost, GetParam()}, {.placement = scattered()});
  reference::Step step = make_step(shape, 3);
  runner.upload(step);
  const std::unique_ptr<Graph> graph =
      must(runner.world->capture([&] { return runner.enqueue_step(StepMode::kFused); }));
  for (const ExpertPlacement& placement : {scattered(), must(ExpertPlacement::even(6, 4)), scattered()}) {
    ASSERT_TRUE(runner.ep->set_placement(placement).ok());
    reference::place_experts(step, *runner.ep);
    runner.upload(step);
    ASSERT_TRUE(graph->launch().ok());
    ASSERT_TRUE(runner.ep->synchronize().ok());
    runner.check(step);
  }
}

TEST_P(Placement, CountsRowsPerExpert) {
  RunOptions counting = options();
  counting.counts_experts = true;
  const Shape shape = four_ranks();
  EpHarness harness(shape, counting);
  std::vector<std::vector<int64_t>> expected(4, std::vector<int64_t>(6));
  const auto run_step = [&](uint64_t seed) {
    reference::Step step = as_run(make_step(shape, seed), counting);
    step.topk_ids[1][0] = -1;
    reference::place_experts(step, harness.ep());
    ASSERT_EQ(harness.run_and_compare(step), "");
    for (size_t rank = 0; rank < 4; ++rank)
      for (const int id : step.topk_ids[rank])
        if (id >= 0) ++expected[rank][static_cast<size_t>(id)];
  };
  const auto check = [&] {
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(must(harness.ep().expert_counts(rank)), expected[static_cast<size_t>(rank)]) << rank;
  };
  run_step(1);
  run_step(2);
  check();
  ASSERT_TRUE(harness.ep().set_placement(must(ExpertPlacement::even(6, 4))).ok());
  run_step(3);
  check();
  ASSERT_TRUE(harness.ep().clear_expert_counts(0).ok());
  expected[0].assign(6, 0);
  run_step(4);
  check();
}

TEST_P(Placement, CountsOfAnEvenDivision) {
  const Shape shape{.tokens_per_rank = {5, 3}};
  const RunOptions counting{.protocol = GetParam(), .counts_experts = true};
  EpHarness harness(shape, counting);
  const reference::Step step = make_step(shape, 1);
  ASSERT_EQ(harness.run_and_compare(step), "");
  std::vector<int64_t> expected(4);
  for (const int id : step.topk_ids[0]) ++expected[static_cast<size_t>(id)];
  EXPECT_EQ(must(harness.ep().expert_counts(0)), expected);
}

// 256 experts on 8 ranks, on 7, on 8 again.
TEST_P(Placement, FewerRanksShareAllExpertsAndComeBack) {
  const Shape shape{
      .n_ranks = 8, .n_experts = 256, .top_k = 2, .hidden = 16, .tokens_per_rank = std::vector<int>(8, 2)};
  StepRunner runner(shape, {TargetChoice::kHost, GetParam()}, {.counts_experts = true});
  ExpertParallel& ep = *runner.ep;
  const auto run_step = [&](const std::vector<int>& members, int num_seats) {
    ASSERT_EQ(ep.n_ranks(), static_cast<int>(members.size()));
    EXPECT_EQ(ep.n_local_experts(), num_seats);
    Shape present = shape;
    present.n_ranks = ep.n_ranks();
    reference::Step step = make_step(present, 5);
    reference::place_experts(step, ep);
    runner.allocate(members);
    runner.upload(step);
    ASSERT_TRUE(runner.enqueue_step(StepMode::kFused).ok());
    ASSERT_TRUE(ep.synchronize().ok());
    runner.check(step);
  };
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7}, survivors = {0, 1, 2, 4, 5, 6, 7};
  run_step(all, 32);
  ASSERT_TRUE(ep.reset(survivors).ok());
  run_step(survivors, 37);
  const Status back = ep.reset_to(all);
  ASSERT_TRUE(back.ok()) << back.to_string();
  run_step(all, 32);
  // Survivors have what they sent by all three placements; the rank that has come back begins anew.
  for (const int rank : {0, 3}) {
    const std::vector<int64_t> counts = must(ep.expert_counts(rank));
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), rank == 3 ? 4 : 12);
  }
  Lists lists(8);
  for (int expert = 0; expert < 256; ++expert) lists[static_cast<size_t>(expert % 8)].push_back(expert);
  ASSERT_TRUE(ep.reset_to(all, placement_of(256, lists)).ok());
  run_step(all, 32);
}

TEST_P(Placement, ErrorsNameWhatIsWrong) {
  const Shape shape = four_ranks();
  EpHarness harness(shape, options());
  ExpertParallel& ep = harness.ep();
  const auto message = [&](const ExpertPlacement& placement) {
    return ep.set_placement(placement).message();
  };
  EXPECT_EQ(message(placement_of(6, {{0}, {1, 2, 3, 4, 5}, {}, {}})),
            "set_placement: rank 1 would hold 5 experts; there are 4 seats (max_experts_per_rank)");
  EXPECT_EQ(message(must(ExpertPlacement::even(6, 3))), "set_placement: placement has 3 ranks; there are 4");
  EXPECT_EQ(message(must(ExpertPlacement::even(8, 4))),
            "set_placement: placement has 8 experts; n_experts is 6");
  EXPECT_EQ(ep.expert_counts(0).status().message(),
            "expert_counts: counts_experts is false; create() must be told to count");
  EXPECT_EQ(ep.reset_to({0, 4}).message(), "world_ranks[1] is 4; they must ascend within 0..3");
  ASSERT_TRUE(harness.enqueue_dispatch(make_step(shape, 1)).ok());
  EXPECT_EQ(message(scattered()),
            "set_placement on rank 0 after dispatch; next must come combine or combine_async");
  ASSERT_TRUE(ep.synchronize().ok());

  EpHarness plain({.tokens_per_rank = {1, 1}}, {.protocol = GetParam()});
  EXPECT_EQ(plain.ep().set_placement(must(ExpertPlacement::even(4, 2))).code(),
            StatusCode::kFailedPrecondition);
  const ExpertParallelConfig config{.n_experts = 6,
                                    .top_k = 2,
                                    .hidden = 16,
                                    .max_tokens_per_rank = 1,
                                    .placement = scattered(),
                                    .max_experts_per_rank = 257};
  EXPECT_EQ(
      ExpertParallel::create(harness.world(), config).status().message(),
      "257 experts per rank (placement, max_experts_per_rank) on 4 ranks make 1028 seats; at most 1024");
}

TEST_P(Placement, BadIdsAreFaultsThatNameTheId) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape = four_ranks();
  EpHarness harness(shape, options());
  reference::Step step = as_run(make_step(shape, 1), options());
  step.topk_ids[1][2] = 6;
  const std::string said = harness.run_and_compare(step);
  EXPECT_NE(said.find("topk_ids of rank 1 holds 6; valid ids are -1 (padding) and 0..5"), std::string::npos)
      << said;
}

// A rank that is not there: the expert, not its seat, is named.
TEST_P(Placement, FaultsNameTheExpert) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  RunOptions impatient = options();
  impatient.placement = placement_of(2, {{1}, {0}});
  impatient.timeout_ns = 50'000'000;
  const Shape shape{.n_experts = 2, .tokens_per_rank = {2, 2}};
  EpHarness harness(shape, impatient);
  const Status status = harness.dispatch_some(make_step(shape, 1), {0});
  ASSERT_FALSE(status.ok());
  const std::optional<FaultRecord> record = harness.ep().fault(0);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->expert, GetParam() == Protocol::kSlotted ? 1 : -1) << status.to_string();
}

// What a table gone wrong would do; the checks that real tables pass must see it.
TEST_P(Placement, WrongTablesAreCaught) {
  const Shape shape = four_ranks();
  const reference::Step step = as_run(make_step(shape, 2), options());
  std::vector<int32_t> right, of_other_rank, stale, shifted;
  const ExpertPlacement placement = scattered(), before = placement_of(6, {{0, 1}, {2}, {3, 4}, {5}});
  for (int expert = 0; expert < 6; ++expert) {
    const auto seat = [](ExpertSeat found) { return found.rank * 4 + found.seat; };
    right.push_back(seat(placement.seat_for(expert, 0)));
    of_other_rank.push_back(seat(placement.seat_for(expert, 3)));
    stale.push_back(seat(before.seat_for(expert, 0)));
    shifted.push_back(right.back() ^ 1);
  }
  const auto run_with = [&](const std::vector<int32_t>& table) {
    EpHarness harness(shape, options());
    EXPECT_TRUE(ExpertParallelTestAccess::overwrite_seat_table(harness.ep(), 0, table).ok());
    return harness.run_and_compare(step);
  };
  EXPECT_EQ(run_with(right), "");
  EXPECT_NE(run_with(of_other_rank), "") << "a replica picked as another rank would";
  EXPECT_NE(run_with(stale), "") << "the table of a placement before";
  EXPECT_NE(run_with(shifted), "") << "the seat beside the right one";
}

TEST_P(Placement, MemoryNeededIsWhatIsAllocated) {
  for (const SharedExpert shared : {SharedExpert::kNone, SharedExpert::kFused})
    for (const TokenFormatKind format : {TokenFormatKind::kBF16, TokenFormatKind::kNVFP4ByExpert})
      for (const int group : {0, 2}) {
        const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 4}));
        const ExpertParallelConfig config{
            .n_experts = 6,
            .top_k = 3,
            .hidden = 128,
            .max_tokens_per_rank = 9,
            .protocol = GetParam(),
            .dispatch_format = format,
            .expert_input_scales = std::vector<float>(info_of(format).encodes_by_expert ? 6 : 0, 1.0f),
            .shared_expert = shared,
            .p2p_world_size = group,
            .placement = scattered(),
            .counts_experts = true};
        const MemoryNeeded needed = must(ExpertParallel::memory_needed(config, 4));
        const auto ep = must(ExpertParallel::create(*world, config));
        EXPECT_EQ(ep->bytes_per_rank(), needed.exchange);
        (void)must(ep->row_buffers(0));
        EXPECT_EQ(ep->bytes_per_rank(), needed.total());
        EXPECT_EQ(needed.row_buffers == 0, GetParam() == Protocol::kDirect);
      }
}

}  // namespace
}  // namespace switchyard
