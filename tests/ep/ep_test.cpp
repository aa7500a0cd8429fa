// Dispatch and combine, on every target: each step is checked bit for bit against the plain-loop reference.
#include <algorithm>
#include <limits>

#include "step_test.hpp"
#include "sweep.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class Ep : public testing_support::StepTest {};

INSTANTIATE_TEST_SUITE_P(Targets, Ep, testing_support::step_variants(), testing_support::step_variant_name);

TEST_P(Ep, TwoRanks) { check({}); }

TEST_P(Ep, OneRank) { check({.n_ranks = 1, .n_experts = 6, .top_k = 3, .tokens_per_rank = {9}}); }

TEST_P(Ep, ThreeRanks) { check({.n_ranks = 3, .n_experts = 9, .top_k = 4, .tokens_per_rank = {7, 11, 2}}); }

TEST_P(Ep, EightRanks) {
  check({.n_ranks = 8,
         .n_experts = 32,
         .top_k = 8,
         .hidden = 128,
         .tokens_per_rank = {8, 3, 8, 1, 0, 5, 8, 2}});
}

TEST_P(Ep, ARankWithoutTokensStillTakesPart) { check({.tokens_per_rank = {0, 6}}); }

TEST_P(Ep, NoTokensAnywhere) { check({.tokens_per_rank = {0, 0}, .max_tokens_per_rank = 4}); }

TEST_P(Ep, NoTokensPromised) { check({.tokens_per_rank = {0, 0}}); }

TEST_P(Ep, StepsOfChangingSizeReuseTheBuffers) {
  Shape shape{.n_ranks = 2, .n_experts = 8, .top_k = 3, .tokens_per_rank = {0, 0}, .max_tokens_per_rank = 12};
  EpHarness harness(shape, options());
  for (int i = 0; i < 8 && !HasFatalFailure(); ++i) {
    shape.tokens_per_rank = {(i * 5) % 13, (i * 7 + 3) % 13};
    harness.run_and_check(make_step(shape, 40 + i));
  }
}

TEST_P(Ep, EveryTokenToOneExpert) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 1, .tokens_per_rank = {10, 10}};
  reference::Step step = make_step(shape, 1);
  for (auto& ids : step.topk_ids) std::fill(ids.begin(), ids.end(), 3);
  EpHarness(shape, options()).run_and_check(step);
}

TEST_P(Ep, DuplicateIdsMakeARowEach) {
  // All ids of a token the same, with every slot of the receive buffer in use.
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 5, .tokens_per_rank = {10, 10}};
  reference::Step step = make_step(shape, 2);
  for (auto& ids : step.topk_ids) std::fill(ids.begin(), ids.end(), 1);
  EpHarness harness(shape, options());
  harness.run_and_check(step);
  if (HasFatalFailure()) return;
  // Some tokens repeat, some do not, and the number of repeats differs.
  for (auto& ids : step.topk_ids)
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i / 5 % 3 == 0 ? i % 4 : i % 2);
  harness.run_and_check(step);
}

TEST_P(Ep, PaddingIdsAreSkippedEverywhere) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 4, .tokens_per_rank = {8, 8}};
  for (const auto reduction : {CombineReduction::kWeighted, CombineReduction::kUnreduced}) {
    RunOptions run = options();
    run.reduction = reduction;
    EpHarness harness(shape, run);
    reference::Step step = make_step(shape, 3);
    for (auto& ids : step.topk_ids)
      for (size_t i = 0; i < ids.size(); i += 3) ids[i] = -1;
    // A padding id's weight must not count, whatever it is.
    for (auto& weights : step.topk_weights)
      for (size_t i = 0; i < weights.size(); i += 3) weights[i] = std::numeric_limits<float>::quiet_NaN();
    harness.run_and_check(step);
    if (HasFatalFailure()) return;
    for (auto& ids : step.topk_ids) std::fill(ids.begin(), ids.end(), -1);
    harness.run_and_check(step);
  }
}

TEST_P(Ep, UnreducedOutput) {
  RunOptions run = options();
  run.reduction = CombineReduction::kUnreduced;
  check({.n_ranks = 3, .n_experts = 6, .top_k = 3, .tokens_per_rank = {5, 0, 7}}, run);
}

TEST_P(Ep, EveryTopK) {
  for (const int top_k : testing_support::sweep({1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 19, 24, 29, 32}))
    if (!HasFatalFailure())
      check({.n_ranks = 2, .n_experts = 40, .top_k = top_k, .tokens_per_rank = {4, 3}}, options(), 1);
}

TEST_P(Ep, HiddenSizesThatNobodyTunesFor) {
  for (const int hidden : testing_support::sweep({8, 16, 24, 72, 264, 2880, 7168, 16384, 1000}))
    if (!HasFatalFailure())
      check({.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = hidden, .tokens_per_rank = {3, 2}},
            options(), 1);
}

TEST_P(Ep, OneBlockDoesEverything) {
  RunOptions run = options();
  run.n_sms = 1;
  run.num_threads = 32;
  check({.n_ranks = 2, .n_experts = 6, .top_k = 3, .tokens_per_rank = {6, 6}}, run);
}

TEST_P(Ep, MoreBlocksThanExpertsOrTokens) {
  RunOptions run = options();
  run.n_sms = 7;
  check({.n_ranks = 2, .n_experts = 2, .top_k = 1, .tokens_per_rank = {2, 1}}, run);
}

TEST_P(Ep, DependentLaunchesWaitForWhatTheyRead) {
  RunOptions run = options();
  run.dependent_launch = true;
  check({.n_ranks = 4, .n_experts = 16, .top_k = 4, .hidden = 512, .tokens_per_rank = {30, 7, 0, 19}}, run,
        testing_support::kFewCases ? 3 : 6);
}

TEST_P(Ep, ManyExpertsAndRanks) {
  RunOptions run = options();
  run.n_sms = 2;
  check({.n_ranks = 16,
         .n_experts = 1024,
         .top_k = 6,
         .hidden = 16,
         .tokens_per_rank = std::vector<int>(16, 3)},
        run, 1);
}

TEST_P(Ep, SixtyFourRanks) {
  RunOptions run = options();
  run.n_sms = 2;
  run.num_threads = 32;
  // With a few cases only: more ranks than a warp has lanes.
  const int n_ranks = testing_support::kFewCases ? 33 : 64;
  check({.n_ranks = n_ranks,
         .n_experts = n_ranks,
         .top_k = 2,
         .hidden = 8,
         .tokens_per_rank = std::vector<int>(static_cast<size_t>(n_ranks), 2)},
        run, 1);
}

// What dispatch and combine give on the GPU is what they give on the host, bit for bit.
TEST(Buffer, ThatIsMadeByDefaultHoldsNothing) {
  Buffer<float> buffer;
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_TRUE(buffer.upload({}).ok());
  EXPECT_EQ(buffer.upload({1}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(buffer.fill_bytes(0xff).ok());
  EXPECT_EQ(buffer.fill_bytes(0xff, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer.download(1).status().code(), StatusCode::kInvalidArgument);
  const Result<std::vector<float>> values = buffer.download();
  ASSERT_TRUE(values.ok());
  EXPECT_TRUE(values.value().empty());
}

TEST(EpTargets, GpuEqualsHost) {
  SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda);
  for (const int n_ranks : {1, 2, 4, 8}) {
    const Shape shape{.n_ranks = n_ranks,
                      .n_experts = 32,
                      .top_k = 8,
                      .hidden = 512,
                      .tokens_per_rank = std::vector<int>(n_ranks, 16)};
    const reference::Step step = make_step(shape, 77);
    for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect}) {
      EpHarness host(shape, {.target = TargetChoice::kHost, .protocol = protocol});
      EpHarness cuda(shape,
                     {.target = TargetChoice::kCuda, .protocol = protocol, .n_sms = 16, .num_threads = 512});
      host.run_and_check(step);
      cuda.run_and_check(step);
      EXPECT_EQ(host.last_output(), cuda.last_output()) << n_ranks << " ranks, " << to_string(protocol);
    }
  }
}

TEST(ChooseProtocol, AutomaticLooksAtRanksAndPromisedTokens) {
  const auto chosen = [](int n_ranks, int max_tokens, Protocol asked, Routing routing = Routing::kAllToAll) {
    ExpertParallelConfig config;
    config.n_experts = 64;
    config.max_tokens_per_rank = max_tokens;
    config.protocol = asked;
    config.routing = routing;
    return choose_protocol(config, n_ranks).protocol;
  };
  EXPECT_EQ(chosen(8, 4096, Protocol::kAutomatic), Protocol::kDirect);
  EXPECT_EQ(chosen(32, 1, Protocol::kAutomatic), Protocol::kDirect);
  EXPECT_EQ(chosen(64, 5, Protocol::kAutomatic), Protocol::kDirect);
  EXPECT_EQ(chosen(64, 4, Protocol::kAutomatic), Protocol::kSlotted);
  EXPECT_EQ(chosen(64, 4, Protocol::kAutomatic, Routing::kSkipAllToAll), Protocol::kDirect)
      << "nobody tells counts";
  EXPECT_EQ(chosen(64, 4, Protocol::kDirect), Protocol::kDirect);
  EXPECT_EQ(chosen(8, 4096, Protocol::kSlotted), Protocol::kSlotted);
}

// In the emulator's simulated mode the same kernels run in any order the seed draws.
TEST(EpSimulated, RandomInterleavingsGiveTheSameResult) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 16, .tokens_per_rank = {3, 4}};
  for (uint64_t seed = 0; seed < 80 && !testing::Test::HasFatalFailure(); ++seed) {
    EpHarness harness(shape, {.mode = seed % 2 == 0 ? StepMode::kSplit : StepMode::kFused,
                              .protocol = seed % 4 < 2 ? Protocol::kSlotted : Protocol::kDirect,
                              .n_sms = 2,
                              .num_threads = 32,
                              .host = {.mode = EmulatorMode::kSimulated, .seed = seed}});
    for (int i = 0; i < 2; ++i) harness.run_and_check(make_step(shape, seed * 10 + i));
  }
}

}  // namespace
}  // namespace switchyard
