// Bad input, misuse and absent peers end in a Status that says what happened; after reset() the world works
// again.
#include <algorithm>

#include "ep_harness.hpp"
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class EpFault : public testing::TestWithParam<std::tuple<TargetChoice, Protocol>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(target()); }
  static TargetChoice target() { return std::get<0>(GetParam()); }
  static Protocol protocol() { return std::get<1>(GetParam()); }
  static RunOptions options() { return {.target = target(), .protocol = protocol()}; }
};

INSTANTIATE_TEST_SUITE_P(Targets, EpFault,
                         testing::Combine(testing_support::all_targets(), testing_support::both_protocols()),
                         [](const auto& info) {
                           return testing_support::target_name(std::get<0>(info.param)) +
                                  testing_support::protocol_name(std::get<1>(info.param));
                         });

void expect_message(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
}

TEST_P(EpFault, AnIdOutOfRangeIsNamedAndTheNextStepIsRight) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape;
  EpHarness harness(shape, options());
  for (const int32_t bad_id : {4, -2, 1 << 30}) {
    reference::Step step = make_step(shape, 5);
    step.topk_ids[1][3] = bad_id;
    expect_message(
        harness.dispatch_some(step, {0, 1}), StatusCode::kInvalidArgument,
        "topk_ids of rank 1 holds " + std::to_string(bad_id) + "; valid ids are -1 (padding) and 0..3");
    ASSERT_TRUE(harness.ep().reset().ok());
    harness.run_and_check(make_step(shape, 6));
  }
}

// Counts and offsets of a broken step may be anything, and its rows may still be in flight: nothing behind
// dispatch works on them.
TEST_P(EpFault, RowsOfABrokenStepAreNotAnnotated) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  if (protocol() == Protocol::kSlotted) GTEST_SKIP() << "rows may be complete before a peer finds its fault";
  const Shape shape{.n_ranks = 3, .n_experts = 6, .tokens_per_rank = {4, 4, 4}};
  for (const UnwrittenRows unwritten : {UnwrittenRows::kMarked, UnwrittenRows::kZeroed}) {
    RunOptions run = options();
    run.unwritten = unwritten;
    run.row_alignment = 4;  // so that there are unwritten rows
    EpHarness harness(shape, run);
    harness.run_and_check(as_run(make_step(shape, 4), run));
    reference::Step step = as_run(make_step(shape, 5), run);
    step.topk_ids[1][3] = 6;
    EXPECT_EQ(harness.dispatch_some(step, {0, 1, 2}).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(harness.outputs_are_untouched());
    ASSERT_TRUE(harness.ep().reset().ok());
    harness.run_and_check(as_run(make_step(shape, 6), run));
  }
}

// To its kernels a rank that skips the all-to-all is the only one; who reads the record knows the others too.
TEST_P(EpFault, WithoutAllToAllAFaultIsNamedByTheWorldsNumbers) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape{.n_ranks = 3, .n_experts = 6, .tokens_per_rank = {4, 4, 4}};
  RunOptions run = options();
  run.routing = Routing::kSkipAllToAll;
  EpHarness harness(shape, run);
  reference::Step step = testing_support::as_run(make_step(shape, 5), run);
  step.topk_ids[2][3] = 6;
  expect_message(harness.dispatch_some(step, {0, 1, 2}), StatusCode::kInvalidArgument,
                 "topk_ids of rank 2 holds 6; valid ids are -1 (padding) and 0..5");
  ASSERT_TRUE(harness.ep().fault(2).has_value());
  EXPECT_EQ(harness.ep().fault(2)->late_rank, 2);
  EXPECT_EQ(harness.ep().fault(2)->waiting_rank, 2);
  ASSERT_TRUE(harness.ep().reset().ok());
  harness.run_and_check(testing_support::as_run(make_step(shape, 6), run));
}

TEST_P(EpFault, WithoutAllToAllARankWithOtherTokensIsNamed) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape{.n_ranks = 3, .n_experts = 6, .tokens_per_rank = {4, 4, 4}};
  RunOptions run = options();
  run.routing = Routing::kSkipAllToAll;
  EpHarness harness(shape, run);
  const reference::Step same = testing_support::as_run(make_step(shape, 5), run);
  reference::Step other = same;
  other.tokens[1].resize(3 * static_cast<size_t>(shape.hidden));
  other.topk_ids[1].resize(3 * static_cast<size_t>(shape.top_k));
  other.topk_weights[1].resize(other.topk_ids[1].size());
  for (int i = 0; i < 2; ++i) {
    // Rank 0 and 2 find rank 1, which finds one of them; who is first tells the others.
    const std::string difference = harness.run_and_compare(other);
    EXPECT_NE(difference.find("invalid argument"), std::string::npos) << difference;
    EXPECT_NE(difference.find("rank 1 has 3"), std::string::npos) << difference;
    EXPECT_NE(difference.find("has 4"), std::string::npos) << difference;
    ASSERT_TRUE(harness.ep().reset().ok());
    harness.run_and_check(same);
  }
  expect_message(harness.ep().all_reduce(0, nullptr, 3), StatusCode::kInvalidArgument,
                 "all_reduce: values is null");
  auto values = harness.world().rank(0).allocate<bf16>(256).value();
  expect_message(harness.ep().all_reduce(0, values.data(), 3), StatusCode::kInvalidArgument,
                 "all_reduce: num_tokens is 3; this step dispatched 4");
}

TEST_P(EpFault, APeerThatNeverComesIsNamedOnEveryRankThatWaits) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  auto world = World::create({.target = target(), .n_ranks = 3});
  ASSERT_TRUE(world.ok());
  auto ep = ExpertParallel::create(*world.value(), {.n_experts = 6,
                                                    .top_k = 1,
                                                    .hidden = 8,
                                                    .max_tokens_per_rank = 4,
                                                    .n_sms = 2,
                                                    .timeout_ns = 1'000'000'000,
                                                    .protocol = protocol()});
  ASSERT_TRUE(ep.ok()) << ep.status().to_string();
  std::vector<Buffer<uint32_t>> offsets;
  std::vector<Buffer<int32_t>> ids;
  for (const int rank : {0, 2}) {  // rank 1 is dead
    offsets.push_back(world.value()->rank(rank).allocate<uint32_t>(3).value());
    ids.push_back(world.value()->rank(rank).allocate<int32_t>(2).value());
    const DispatchOutput output{.row_offsets = offsets.back().data(), .expert_ids = ids.back().data()};
    ASSERT_TRUE(ep.value()->dispatch(rank, {}, output).ok());
  }
  for (const int rank : {0, 2}) {
    const Status status = ep.value()->synchronize(rank);
    expect_message(status, StatusCode::kDeadlineExceeded, "for rank 1");
    expect_message(status, StatusCode::kDeadlineExceeded,
                   "rank 1 is dead, stuck, late or has not made the call");
    EXPECT_EQ(status.message().find("0x"), std::string::npos) << status.message();
  }
  // The rank that never came did not give up, and did not stop.
  const Status of_dead = ep.value()->synchronize(1);
  expect_message(of_dead, StatusCode::kDeadlineExceeded, "for rank 1");
  EXPECT_EQ(of_dead.message().find("stopped"), std::string::npos) << of_dead.message();
  expect_message(ep.value()->dispatch(0, {}, {}), StatusCode::kFailedPrecondition, "call reset() first");
  ASSERT_TRUE(ep.value()->reset().ok());
  EXPECT_TRUE(ep.value()->synchronize().ok());
}

TEST_P(EpFault, MoreRowsThanTheOutputHoldsIsNamed) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  auto world = World::create({.target = target(), .n_ranks = 1});
  auto ep = ExpertParallel::create(*world.value(), {.n_experts = 1,
                                                    .top_k = 2,
                                                    .hidden = 8,
                                                    .max_tokens_per_rank = 4,
                                                    .n_sms = 2,
                                                    .protocol = Protocol::kSlotted});
  ASSERT_TRUE(ep.ok()) << ep.status().to_string();
  Rank& rank = world.value()->rank(0);
  auto tokens = rank.upload(std::vector<bf16>(32)).value();
  auto topk_ids = rank.upload(std::vector<int32_t>(8, 0)).value();
  auto rows = rank.allocate<bf16>(7 * 8).value();
  auto src_info = rank.allocate<int32_t>(14).value();
  auto offsets = rank.allocate<uint32_t>(2).value();
  auto ids = rank.allocate<int32_t>(1).value();
  ASSERT_TRUE(ep.value()
                  ->dispatch(0, {tokens.data(), topk_ids.data(), 4},
                             {rows.data(), src_info.data(), 7, offsets.data(), ids.data()})
                  .ok());
  expect_message(ep.value()->synchronize(), StatusCode::kResourceExhausted,
                 "receives 8 rows, its output holds 7 (max_rows; a larger capacity_factor makes room");
}

// Counts come first: that a step does not fit is known before any row moves, on every rank.
TEST_P(EpFault, AStepOverCapacityIsSkippedAndTheNextOneIsRight) {
  if (protocol() == Protocol::kSlotted) GTEST_SKIP() << "the slotted protocol has room for everything";
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .tokens_per_rank = {5, 5}};
  RunOptions run = options();
  run.capacity_factor = 1.5;  // 15 rows
  EpHarness harness(shape, run);
  reference::Step crowd = make_step(shape, 5);
  for (auto& ids : crowd.topk_ids) std::fill(ids.begin(), ids.end(), 2);
  reference::Step even = make_step(shape, 6);
  for (auto& ids : even.topk_ids)
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 4);
  const std::string message = "rank 1 would receive 20 rows and has room for 15";
  for (int i = 0; i < 2; ++i) {
    // Found before combine, or after it.
    ASSERT_TRUE(i == 0 ? true : harness.enqueue_steps(crowd, 2).ok());
    const Status status = i == 0 ? harness.dispatch_some(crowd, {0, 1}) : harness.ep().synchronize();
    expect_message(status, StatusCode::kResourceExhausted, message);
    EXPECT_TRUE(harness.ep().synchronize().ok()) << "said once";
    harness.run_and_check(even);
  }
}

// Told of a skipped step at any time, a rank goes on where it is.
TEST_P(EpFault, ASkippedStepIsSaidLateWithoutHarm) {
  if (protocol() == Protocol::kSlotted) GTEST_SKIP() << "the slotted protocol has room for everything";
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .tokens_per_rank = {5, 5}};
  RunOptions run = options();
  run.capacity_factor = 1.5;
  EpHarness harness(shape, run);
  reference::Step crowd = make_step(shape, 5), even = make_step(shape, 6);
  for (auto& ids : crowd.topk_ids) std::fill(ids.begin(), ids.end(), 2);
  for (auto& ids : even.topk_ids)
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 4);
  // Between dispatch_async and dispatch_wait: the wait must still come.
  EXPECT_EQ(harness.dispatch_in_two(crowd).code(), StatusCode::kResourceExhausted);
  harness.run_and_check(even);
  // When a step that fits is already behind it.
  ASSERT_TRUE(harness.enqueue_steps(crowd, 1).ok());
  ASSERT_TRUE(harness.enqueue_dispatch(even).ok());
  EXPECT_EQ(harness.ep().synchronize().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(harness.enqueue_combine(even).ok());
  EXPECT_TRUE(harness.ep().synchronize().ok());
  // One rank is told, the other goes on untold.
  ASSERT_TRUE(harness.enqueue_steps(crowd, 1).ok());
  EXPECT_EQ(harness.ep().synchronize(0).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(harness.enqueue_dispatch(even).ok());
  EXPECT_EQ(harness.ep().synchronize(1).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(harness.enqueue_combine(even).ok());
  EXPECT_TRUE(harness.ep().synchronize().ok());
  harness.run_and_check(even);
}

TEST_P(EpFault, DirectRowsMustBeThoseOfTheWorld) {
  if (protocol() == Protocol::kSlotted) GTEST_SKIP() << "the slotted protocol takes any memory";
  EpHarness harness({}, options());
  Rank& rank = harness.world().rank(0);
  auto other = rank.allocate<bf16>(1000).value();
  auto src_info = rank.allocate<int32_t>(10).value();
  auto offsets = rank.allocate<uint32_t>(3).value();
  auto ids = rank.allocate<int32_t>(2).value();
  expect_message(harness.ep().dispatch(0, {}, {other.data(), src_info.data(), 5, offsets.data(), ids.data()}),
                 StatusCode::kInvalidArgument, "must be those of row_buffers(0)");
  ASSERT_TRUE(harness.ep().dispatch_async(0, {}).ok());
  ASSERT_TRUE(harness.ep().dispatch_async(1, {}).ok());
  ASSERT_TRUE(harness.ep().dispatch_wait(0, {.row_offsets = offsets.data(), .expert_ids = ids.data()}).ok());
  expect_message(harness.ep().combine_async(0, {other.data(), src_info.data()}), StatusCode::kInvalidArgument,
                 "must be the expert_outputs or the rows of row_buffers(0)");
  ASSERT_TRUE(harness.ep().reset().ok());
}

// src_info has been in the caller's hands. What it says becomes an address only after a look at it.
TEST_P(EpFault, WildSourceInfoIsNamedAndTheNextStepIsRight) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  if (protocol() == Protocol::kDirect) GTEST_SKIP() << "the direct protocol does not read it";
  const Shape shape{.n_ranks = 1, .n_experts = 1, .top_k = 1, .hidden = 64, .tokens_per_rank = {3}};
  EpHarness harness(shape, options());
  const reference::Step step = make_step(shape, 5);
  Rank& rank = harness.world().rank(0);
  auto rows = rank.upload(step.tokens[0]).value();
  auto output = rank.allocate<bf16>(3 * 64).value();
  auto ids = rank.upload(step.topk_ids[0]).value();
  auto weights = rank.upload(step.topk_weights[0]).value();
  const auto combine = [&](const int32_t* src_info, CombineReduction reduction) {
    return harness.ep().combine(0, {rows.data(), src_info},
                                {ids.data(), weights.data(), 3, {reduction, output.data()}});
  };
  reference::Step without_rows = step;
  without_rows.topk_ids[0].assign(3, -1);
  const struct {
    int32_t token_idx, k;
    const char* message;
  } cases[] = {{1 << 28, 0, "back to token 268435456, k 0 of rank 0; valid are tokens 0..2 and k 0..0"},
               {-1, 0, "back to token -1, k 0"},
               {2, -7, "back to token 2, k -7"},
               // These would lie in the slots of tokens 1 and 2.
               {1, 1, "back to token 1, k 1"},
               {2, -1, "back to token 2, k -1"},
               {-1, 2, "back to token -1, k 2"},
               {1 << 28, 1 - (1 << 28), "back to token 268435456, k -268435455"}};
  for (const auto& bad : cases) {
    auto src_info = rank.upload<int32_t>({0, 0, bad.token_idx, bad.k, bad.token_idx, bad.k}).value();
    ASSERT_TRUE(ExpertParallelTestAccess::poison_receive_buffers(harness.ep(), 0xdd).ok());
    ASSERT_TRUE(harness.enqueue_dispatch(step).ok());
    ASSERT_TRUE(combine(src_info.data(), CombineReduction::kWeighted).ok());
    expect_message(harness.ep().synchronize(), StatusCode::kInvalidArgument, bad.message);
    ASSERT_TRUE(harness.ep().reset().ok());
    // A step without rows writes no slot; combine still reads those of the ids that it is given.
    ASSERT_TRUE(harness.enqueue_dispatch(without_rows).ok());
    ASSERT_TRUE(combine(src_info.data(), CombineReduction::kUnreduced).ok());
    ASSERT_TRUE(harness.ep().synchronize().ok());
    // Row 0 may have gone where it belongs before the fault was found.
    const std::vector<bf16> slots = output.download().value();
    for (size_t i = 64; i < slots.size(); ++i) ASSERT_EQ(slots[i].bits, 0xdddd) << bad.message;
    harness.run_and_check(step);
  }
}

TEST_P(EpFault, ExpertRowsWithoutSourceInfoOrWithoutThemselvesAreRefused) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  if (protocol() == Protocol::kDirect) GTEST_SKIP() << "null stands for row_buffers() there";
  const Shape shape{.n_ranks = 1, .n_experts = 1, .top_k = 1, .hidden = 64, .tokens_per_rank = {3}};
  EpHarness harness(shape, options());
  const reference::Step step = make_step(shape, 5);
  auto rows = harness.world().rank(0).allocate<bf16>(3 * 64).value();
  ASSERT_TRUE(harness.enqueue_dispatch(step).ok());
  expect_message(harness.ep().combine_async(0, {rows.data(), nullptr}), StatusCode::kInvalidArgument,
                 "combine_async: src_info is null");
  ASSERT_TRUE(harness.ep().combine_async(0, {}).ok());  // that there are rows is known on the device only
  expect_message(harness.ep().synchronize(), StatusCode::kInvalidArgument,
                 "rank 0 received 3 rows, but expert_rows is null");
  ASSERT_TRUE(harness.ep().reset().ok());
  harness.run_and_check(step);
}

TEST_P(EpFault, CallsOutOfOrderAreRefused) {
  const Shape shape{.tokens_per_rank = {0, 0}, .max_tokens_per_rank = 4};
  EpHarness harness(shape, options());
  ExpertParallel& ep = harness.ep();
  Rank& rank = harness.world().rank(0);
  auto offsets = rank.allocate<uint32_t>(3).value();
  auto ids = rank.allocate<int32_t>(2).value();
  const DispatchOutput output{.row_offsets = offsets.data(), .expert_ids = ids.data()};
  expect_message(ep.combine(0, {}, {}), StatusCode::kFailedPrecondition, "next must come dispatch");
  expect_message(ep.dispatch_wait(0, output), StatusCode::kFailedPrecondition, "next must come dispatch");
  expect_message(ep.combine_wait(0, {}), StatusCode::kFailedPrecondition, "next must come dispatch");
  ASSERT_TRUE(ep.dispatch_async(0, {}).ok());
  expect_message(ep.dispatch_async(0, {}), StatusCode::kFailedPrecondition, "next must come dispatch_wait");
  expect_message(ep.dispatch(0, {}, output), StatusCode::kFailedPrecondition, "next must come dispatch_wait");
  ASSERT_TRUE(ep.dispatch_async(1, {}).ok());
  ASSERT_TRUE(ep.dispatch_wait(0, output).ok());
  expect_message(ep.dispatch(0, {}, output), StatusCode::kFailedPrecondition, "next must come combine");
  ASSERT_TRUE(ep.combine_async(0, {}).ok());
  expect_message(ep.combine_async(0, {}), StatusCode::kFailedPrecondition, "next must come combine_wait");
  ASSERT_TRUE(ep.reset().ok());
  expect_message(ep.dispatch(2, {}, output), StatusCode::kInvalidArgument, "rank is 2; it must be 0..1");
}

TEST_P(EpFault, BadArgumentsNameTheArgumentAndTheLimit) {
  const Shape shape{.tokens_per_rank = {2, 2}};
  EpHarness harness(shape, options());
  Rank& rank = harness.world().rank(0);
  auto tokens = rank.allocate<bf16>(256).value();
  auto ids = rank.allocate<int32_t>(8).value();
  ExpertParallel& ep = harness.ep();
  expect_message(ep.dispatch_async(0, {tokens.data(), ids.data(), 3}), StatusCode::kInvalidArgument,
                 "num_tokens is 3; it must be 0..2");
  expect_message(ep.dispatch_async(0, {tokens.data(), ids.data(), -1}), StatusCode::kInvalidArgument,
                 "num_tokens is -1");
  expect_message(ep.dispatch_async(0, {tokens.data() + 1, ids.data(), 2}), StatusCode::kInvalidArgument,
                 "tokens is");
  expect_message(ep.dispatch_async(0, {nullptr, ids.data(), 2}), StatusCode::kInvalidArgument,
                 "tokens is null");
  expect_message(ep.dispatch_async(0, {tokens.data(), nullptr, 2}), StatusCode::kInvalidArgument,
                 "topk_ids is null");
  expect_message(ep.dispatch(0, {tokens.data(), ids.data(), 2}, {}), StatusCode::kInvalidArgument,
                 "row_offsets is null");
}

TEST_P(EpFault, BadConfigurationsNameTheFieldAndTheLimit) {
  auto world = World::create({.target = target(), .n_ranks = 2});
  ASSERT_TRUE(world.ok());
  const ExpertParallelConfig good{
      .n_experts = 4, .top_k = 2, .hidden = 16, .max_tokens_per_rank = 4, .n_sms = 2, .protocol = protocol()};
  const auto status_of = [&](auto change) {
    ExpertParallelConfig config = good;
    change(config);
    return ExpertParallel::create(*world.value(), config).status();
  };
  expect_message(status_of([](auto& c) { c.max_experts_per_rank = 513; }), StatusCode::kInvalidArgument,
                 "513 experts per rank (placement, max_experts_per_rank) on 2 ranks make 1026 seats");
  expect_message(status_of([](auto& c) { c.n_experts = 1026; }), StatusCode::kInvalidArgument,
                 "n_experts is 1026; it must be 1..1024");
  expect_message(status_of([](auto& c) { c.top_k = 0; }), StatusCode::kInvalidArgument,
                 "top_k is 0; it must be 1..32");
  expect_message(status_of([](auto& c) { c.top_k = 33; }), StatusCode::kInvalidArgument, "top_k is 33");
  expect_message(status_of([](auto& c) { c.hidden = 20; }), StatusCode::kInvalidArgument,
                 "hidden is 20; it must be a multiple of 8");
  expect_message(status_of([](auto& c) { c.hidden = 16392; }), StatusCode::kInvalidArgument,
                 "hidden is 16392");
  expect_message(status_of([](auto& c) { c.max_tokens_per_rank = 65536; }), StatusCode::kInvalidArgument,
                 "0..65535");
  expect_message(status_of([](auto& c) { c.num_threads = 48; }), StatusCode::kInvalidArgument,
                 "num_threads is 48");
  expect_message(status_of([](auto& c) { c.n_sms = 60000; }), StatusCode::kInvalidArgument, "n_sms is 60000");
  expect_message(status_of([](auto& c) { c.timeout_ns = 0; }), StatusCode::kInvalidArgument,
                 "timeout_ns is 0");
  expect_message(status_of([](auto& c) { c.timeout_ns = UINT64_MAX; }), StatusCode::kInvalidArgument,
                 "timeout_ns is 18446744073709551615; it must be 1..");
}

TEST_P(EpFault, RanksWithDifferentConfigurationsAreRefusedByName) {
  auto world = World::create({.target = target(), .n_ranks = 3});
  ASSERT_TRUE(world.ok());
  const ExpertParallelConfig good{
      .n_experts = 6, .top_k = 2, .hidden = 16, .max_tokens_per_rank = 4, .n_sms = 2};
  std::vector<ExpertParallelConfig> configs(3, good);
  EXPECT_TRUE(ExpertParallel::create(*world.value(), configs).ok());
  configs[2].top_k = 3;
  expect_message(ExpertParallel::create(*world.value(), configs).status(), StatusCode::kInvalidArgument,
                 "rank 2 has another configuration than rank 0: top_k is 3 there and 2 here");
  configs.pop_back();
  expect_message(ExpertParallel::create(*world.value(), configs).status(), StatusCode::kInvalidArgument,
                 "config_of_rank has 2 entries; the world has 3 ranks");
}

// A step that broke leaves counters that mean nothing. What was enqueued behind it must leave them, and
// memory, alone.
TEST_P(EpFault, WhatIsEnqueuedBehindABrokenStepDoesNothing) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const Shape shape;
  EpHarness harness(shape, options());
  reference::Step step = make_step(shape, 8);
  step.topk_ids[0][0] = 99;
  ASSERT_TRUE(harness.enqueue_steps(step, 3).ok());
  expect_message(harness.ep().synchronize(), StatusCode::kInvalidArgument, "topk_ids of rank 0 holds 99");
  ASSERT_TRUE(harness.ep().reset().ok());
  harness.run_and_check(make_step(shape, 9));
}

TEST_P(EpFault, ResetRefusesSurvivorsThatMakeNoWorld) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .tokens_per_rank = {1, 1, 1}};
  EpHarness harness(shape, options());
  expect_message(harness.ep().reset({}), StatusCode::kInvalidArgument, "survivors is empty");
  expect_message(harness.ep().reset({0, 3}), StatusCode::kInvalidArgument, "survivors[1] is 3");
  expect_message(harness.ep().reset({1, 0}), StatusCode::kInvalidArgument, "survivors[1] is 0");
  EXPECT_TRUE(harness.ep().reset({0, 2}).ok());
  EXPECT_EQ(harness.ep().n_ranks(), 2);
  EXPECT_EQ(harness.ep().n_local_experts(), 3);
}

TEST(WorldOptionsTest, RankLimitsAreChecked) {
  EXPECT_EQ(World::create({.target = TargetChoice::kHost, .n_ranks = 0}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(World::create({.target = TargetChoice::kHost, .n_ranks = 513}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard
