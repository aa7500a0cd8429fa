// Dispatch in every token format, on every target and in both protocols: encoded rows and scales bit for bit
// against the plain-loop reference, and what combine makes of experts that saw the quantised tokens.
#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "ep_harness.hpp"
#include "format_sweep.hpp"
#include "sweep.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::kFewCases;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::StepMode;

// All but the first, bf16.
constexpr std::span<const TokenFormatKind> kEncodedFormats = std::span(kTokenFormatKinds).subspan<1>();
static_assert(kTokenFormatKinds[0] == TokenFormatKind::kBF16);

using Variant = std::tuple<TargetChoice, StepMode, Protocol, TokenFormatKind>;

class EpFormat : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static RunOptions options() {
    const auto [target, mode, protocol, format] = GetParam();
    return {.target = target, .mode = mode, .protocol = protocol, .format = format};
  }
  static TokenFormatKind format() { return std::get<3>(GetParam()); }
  static reference::Step make_step(const Shape& shape, uint64_t seed) {
    return testing_support::as_run(testing_support::make_step(shape, seed), options());
  }
  static void check(const Shape& shape, const RunOptions& run = options(), int num_steps = 2) {
    EpHarness harness(shape, run);
    for (int i = 0; i < num_steps && !HasFatalFailure(); ++i)
      harness.run_and_check(make_step(shape, 300 + i));
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, EpFormat,
                         testing::Combine(testing_support::all_targets(),
                                          testing::Values(StepMode::kSplit, StepMode::kFused),
                                          testing_support::both_protocols(),
                                          testing::ValuesIn(testing_support::encoded_step_formats())),
                         [](const auto& info) {
                           std::string format = to_string(std::get<3>(info.param));
                           std::erase(format, '-');
                           return testing_support::target_name(std::get<0>(info.param)) +
                                  testing_support::protocol_name(std::get<2>(info.param)) +
                                  (std::get<1>(info.param) == StepMode::kSplit ? "Split_" : "Fused_") +
                                  format;
                         });

TEST_P(EpFormat, TwoRanks) { check({.hidden = 256}); }

TEST_P(EpFormat, FewOfManyTokens) {
  check({.n_ranks = 3,
         .n_experts = 9,
         .top_k = 4,
         .hidden = 256,
         .tokens_per_rank = {7, 0, 9},
         .max_tokens_per_rank = testing_support::kMaxTokensOfFetchedScales});
}

TEST_P(EpFormat, RanksOfAnyNumberOfTokens) {
  check({.n_ranks = 3, .n_experts = 9, .top_k = 4, .hidden = 384, .tokens_per_rank = {7, 0, 29}});
}

TEST_P(EpFormat, TheSmallestHiddenAndOthersThatNobodyTunesFor) {
  const int multiple = info_of(format()).hidden_multiple();
  for (const int hidden : testing_support::sweep({16384, 7168, multiple, 3 * multiple}))
    if (!HasFatalFailure() && hidden % multiple == 0)
      check({.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = hidden, .tokens_per_rank = {3, 2}},
            options(), 1);
}

TEST_P(EpFormat, PaddingAndRepeatedIds) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 4, .hidden = 128, .tokens_per_rank = {8, 8}};
  reference::Step step = make_step(shape, 3);
  for (auto& ids : step.topk_ids)
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = i % 5 == 0 ? -1 : static_cast<int32_t>(i / 7 % 4);
  EpHarness(shape, options()).run_and_check(step);
}

TEST_P(EpFormat, NumbersThatHaveNoScale) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 256, .tokens_per_rank = {6, 5}};
  reference::Step step = make_step(shape, 4);
  std::fill(step.tokens[0].begin(), step.tokens[0].begin() + 256, bf16{});     // zeros
  step.tokens[0][256 + 5] = to_bf16(std::numeric_limits<float>::quiet_NaN());  // a group of NaN
  step.tokens[1][2] = to_bf16(std::numeric_limits<float>::infinity());
  step.tokens[1][256 + 200] = to_bf16(1e30f);
  step.tokens[1][512 + 9] = to_bf16(1e-38f);
  EpHarness harness(shape, options());
  EXPECT_EQ(harness.dispatch_and_compare(step), "");
}

TEST_P(EpFormat, DependentLaunches) {
  RunOptions run = options();
  run.dependent_launch = true;
  const int most_tokens = kFewCases ? 10 : 40;
  check({.n_ranks = 2, .n_experts = 8, .top_k = 4, .hidden = 512, .tokens_per_rank = {most_tokens, 9}}, run,
        3);
}

class EpFormatTarget : public testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Targets, EpFormatTarget, testing_support::all_targets(),
                         [](const auto& info) { return testing_support::target_name(info.param); });

void check_by_one_block(const Shape& shape, RunOptions run) {
  run.mode = StepMode::kFused;
  run.protocol = Protocol::kDirect;
  run.n_sms = 1;
  run.num_threads = 96;
  EpHarness(shape, run).run_and_check(testing_support::as_run(testing_support::make_step(shape, 7), run));
}

// More than there are stages.
TEST_P(EpFormatTarget, ManyTokensToABlock) {
  Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 1, .hidden = 6144, .tokens_per_rank = {330, 70}};
  if (kFewCases) shape.tokens_per_rank = {30, 10};
  for (const TokenFormatKind format :
       {TokenFormatKind::kFP8, TokenFormatKind::kNVFP4, TokenFormatKind::kNVFP4ByExpert})
    check_by_one_block(shape, {.target = GetParam(), .format = format});
}

// So that 128 rows of scales do not fit into half of shared memory.
TEST_P(EpFormatTarget, LongRows) {
  Shape shape{.n_ranks = 2,
              .n_experts = 4,
              .top_k = 1,
              .hidden = 16384,
              .tokens_per_rank = {150, 9},
              .max_tokens_per_rank = testing_support::kMaxTokensOfFetchedScales};
  if (kFewCases) shape.tokens_per_rank = {30, 9};
  for (const TokenFormatKind format : {TokenFormatKind::kNVFP4, TokenFormatKind::kMXFP8Tiled})
    check_by_one_block(shape, {.target = GetParam(), .format = format});
}

// More bands of scales than are on their way at once, so that the room of each is filled several times.
TEST_P(EpFormatTarget, ManyRowsOfScalesToABlock) {
  const Shape shape{.n_ranks = 1, .n_experts = 4, .top_k = 2, .hidden = 128, .tokens_per_rank = {650}};
  for (const TokenFormatKind format :
       {TokenFormatKind::kFP8, TokenFormatKind::kNVFP4, TokenFormatKind::kNVFP4ByExpert})
    check_by_one_block(shape, {.target = GetParam(), .format = format});
}

TEST(EpFormats, AHiddenSizeThatIsNotWholeGroupsIsRefused) {
  const auto world = testing_support::must(World::create({.target = TargetChoice::kHost, .n_ranks = 1}));
  for (const TokenFormatKind format : kEncodedFormats) {
    const int multiple = info_of(format).hidden_multiple(), hidden = 3 * multiple + 8;
    const auto ep = ExpertParallel::create(
        *world,
        {.n_experts = 2, .top_k = 1, .hidden = hidden, .max_tokens_per_rank = 1, .dispatch_format = format});
    EXPECT_EQ(ep.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ep.status().message(), "hidden is " + std::to_string(hidden) + "; format " + to_string(format) +
                                         " needs a multiple of " + std::to_string(multiple));
  }
}

TEST(EpFormats, AValueThatIsNoFormatIsRefused) {
  const auto world = testing_support::must(World::create({.target = TargetChoice::kHost, .n_ranks = 1}));
  const auto ep = ExpertParallel::create(
      *world, {.n_experts = 2,
               .top_k = 1,
               .hidden = 72,
               .max_tokens_per_rank = 1,
               .dispatch_format = static_cast<TokenFormatKind>(std::size(kTokenFormatKinds))});
  EXPECT_EQ(ep.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ep.status().message(), "dispatch_format is (no format); this table of kernels has none of it");
}

// With nothing but the kernels between a step and the next. (In weak memory: weak_protocol_test.cpp.)
TEST(EpFormats, StepsMayFollowEachOther) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 3, .hidden = 128, .tokens_per_rank = {9, 14}};
  for (const TokenFormatKind format : testing_support::encoded_step_formats())
    for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect}) {
      const RunOptions run{.mode = StepMode::kFused,
                           .protocol = protocol,
                           .format = format,
                           .shared_expert = SharedExpert::kFused};
      std::vector<reference::Step> steps;
      for (uint64_t seed = 0; seed < 4; ++seed)
        steps.push_back(testing_support::as_run(testing_support::make_step(shape, seed), run));
      EXPECT_EQ(EpHarness(shape, run).run_back_to_back(steps), "")
          << to_string(format) << ", " << to_string(protocol);
    }
}

// In the emulator's simulated mode the same kernels run in any order the seed draws, in weak memory.
TEST(EpFormats, RandomInterleavingsGiveTheSameResult) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 128, .tokens_per_rank = {3, 4}};
  for (uint64_t seed = 0; seed < 4 * kEncodedFormats.size() && !testing::Test::HasFatalFailure(); ++seed) {
    RunOptions run = testing_support::weak_run(seed, seed % 4 < 2 ? Protocol::kSlotted : Protocol::kDirect);
    run.num_threads = 64;
    run.format = kEncodedFormats[seed / 4];
    EpHarness harness(shape, run);
    for (int i = 0; i < 2; ++i)
      harness.run_and_check(testing_support::as_run(testing_support::make_step(shape, seed * 10 + i), run));
  }
}

}  // namespace
}  // namespace switchyard
