// What a step may be besides all-to-all in bf16: a fused shared expert, a combine in fp8, no all-to-all but
// an all-reduce; and all of them together, with tokens quantised. On every target and in both protocols.
#include <algorithm>

#include "format_sweep.hpp"
#include "step_test.hpp"
#include "sweep.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class EpVariant : public StepTest {};

INSTANTIATE_TEST_SUITE_P(Targets, EpVariant, step_variants(), step_variant_name);

TEST_P(EpVariant, ASharedExpertHasGroupZero) {
  RunOptions run = options();
  run.shared_expert = SharedExpert::kFused;
  check({.n_ranks = 3, .n_experts = 9, .top_k = 3, .tokens_per_rank = {7, 0, 12}}, run);
  check({.n_ranks = 1, .n_experts = 2, .top_k = 2, .hidden = 72, .tokens_per_rank = {5}}, run);
}

TEST_P(EpVariant, ASharedExpertTakesTokensThatNobodyElseWants) {
  RunOptions run = options();
  run.shared_expert = SharedExpert::kFused;
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .tokens_per_rank = {9, 6}};
  reference::Step step = as_run(make_step(shape, 8), run);
  for (auto& ids : step.topk_ids) std::fill(ids.begin(), ids.end(), -1);
  EpHarness(shape, run).run_and_check(step);
}

TEST_P(EpVariant, ASharedExpertWithOneBlockAndEveryTopK) {
  RunOptions run = options();
  run.shared_expert = SharedExpert::kFused;
  run.n_sms = 1;
  for (const int top_k : {1, 8, 31, 32})
    if (!HasFatalFailure())
      check({.n_ranks = 2, .n_experts = 34, .top_k = top_k, .tokens_per_rank = {6, 3}}, run, 1);
}

TEST_P(EpVariant, ASharedExpertInEveryFormat) {
  for (const TokenFormatKind format : step_formats()) {
    RunOptions run = options();
    run.shared_expert = SharedExpert::kFused;
    run.format = format;
    if (!HasFatalFailure())
      check({.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 256, .tokens_per_rank = {9, 4}}, run);
  }
}

TEST_P(EpVariant, CombineInFP8) {
  RunOptions run = options();
  run.combine_format = CombineFormat::kFP8;
  check({.n_ranks = 3, .n_experts = 9, .top_k = 4, .hidden = 384, .tokens_per_rank = {7, 0, 12}}, run);
  check({.n_ranks = 2, .n_experts = 34, .top_k = 32, .hidden = 128, .tokens_per_rank = {3, 2}}, run, 1);
  // A warp has several turns of columns, the last one not whole, and of rows.
  check({.n_ranks = 2, .n_experts = 12, .top_k = 9, .hidden = 1664, .tokens_per_rank = {60, 3}}, run, 1);
}

TEST_P(EpVariant, CombineInFP8Unreduced) {
  RunOptions run = options();
  run.combine_format = CombineFormat::kFP8;
  run.reduction = CombineReduction::kUnreduced;
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 3, .hidden = 256, .tokens_per_rank = {5, 6}};
  reference::Step step = as_run(make_step(shape, 9), run);
  for (auto& ids : step.topk_ids)
    for (size_t i = 0; i < ids.size(); i += 4) ids[i] = -1;
  EpHarness(shape, run).run_and_check(step);
}

TEST_P(EpVariant, WithoutAllToAllTheAllReduceCompletesAStep) {
  RunOptions run = options();
  run.routing = Routing::kSkipAllToAll;
  check({.n_ranks = 3, .n_experts = 9, .top_k = 4, .tokens_per_rank = {11, 11, 11}}, run, 4);
  check({.n_ranks = 4, .n_experts = 8, .top_k = 2, .tokens_per_rank = {1, 1, 1, 1}}, run);
  check({.n_ranks = 1, .n_experts = 8, .top_k = 2, .tokens_per_rank = {5}}, run, 1);
}

TEST_P(EpVariant, EverythingAtOnce) {
  for (const Routing routing : {Routing::kAllToAll, Routing::kSkipAllToAll})
    for (const TokenFormatKind format : {TokenFormatKind::kFP8, TokenFormatKind::kNVFP4ByExpert}) {
      RunOptions run = options();
      run.routing = routing;
      run.format = format;
      run.combine_format = CombineFormat::kFP8;
      run.shared_expert = SharedExpert::kFused;
      if (!HasFatalFailure())
        check({.n_ranks = 3, .n_experts = 6, .top_k = 3, .hidden = 256, .tokens_per_rank = {10, 10, 10}}, run,
              3);
    }
}

// In the emulator's simulated mode, in weak memory.
TEST(EpVariants, RandomInterleavingsGiveTheSameResult) {
  const Shape shape{.n_ranks = 2, .n_experts = 4, .top_k = 2, .hidden = 128, .tokens_per_rank = {4, 4}};
  for (uint64_t seed = 0; seed < 32 && !testing::Test::HasFatalFailure(); ++seed) {
    RunOptions run = weak_run(seed, seed % 4 < 2 ? Protocol::kSlotted : Protocol::kDirect);
    run.num_threads = 64;
    run.combine_format = seed % 16 < 8 ? CombineFormat::kBF16 : CombineFormat::kFP8;
    run.shared_expert = seed % 8 < 4 ? SharedExpert::kFused : SharedExpert::kNone;
    run.routing = seed < 16 ? Routing::kAllToAll : Routing::kSkipAllToAll;
    EpHarness harness(shape, run);
    for (int i = 0; i < (kFewCases ? 1 : 3); ++i)
      harness.run_and_check(as_run(make_step(shape, seed * 10 + i), run));
  }
}

// All ranks wait for each other in the all-reduce: all of its blocks must be there at once as well.
TEST(EpVariants, TheBlocksOfTheAllReduceMustFitToo) {
  KernelTable kernels = kernel_table(Target::kHost);
  kernels.direct.all_reduce.max_resident_blocks = [](const LaunchShape&) { return Result<int>(7); };
  const TestHooks hooks{.kernels = &kernels};
  const auto world =
      must(World::create({.target = TargetChoice::kHost, .n_ranks = 2, .host = {.hooks = &hooks}}));
  ExpertParallelConfig config{
      .n_experts = 4, .top_k = 1, .hidden = 128, .max_tokens_per_rank = 1, .n_sms = 4};
  EXPECT_TRUE(ExpertParallel::create(*world, config).ok()) << "no all-reduce";
  config.routing = Routing::kSkipAllToAll;
  EXPECT_TRUE(ExpertParallel::create(*world, config).ok()) << "the caller adds up";
  config.allreduce_world_size = 2;
  const Status status = ExpertParallel::create(*world, config).status();
  EXPECT_EQ(status.message().rfind("n_sms is 4; 2 rank(s) on ", 0), 0u) << status.to_string();
  EXPECT_NE(status.message().find("can have 3 blocks"), std::string::npos) << status.to_string();
  config.n_sms = 3;
  EXPECT_TRUE(ExpertParallel::create(*world, config).ok());
}

TEST(EpVariants, MisuseIsNamed) {
  const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const ExpertParallelConfig good{.n_experts = 4, .top_k = 1, .hidden = 128, .max_tokens_per_rank = 1};
  const auto message_of = [&](ExpertParallelConfig config) {
    return ExpertParallel::create(*world, config).status().message();
  };
  ExpertParallelConfig config = good;
  config.allreduce_world_size = 2;
  EXPECT_EQ(message_of(config), "allreduce_world_size is 2; it must be 0 or 1 where tokens are exchanged");
  config.routing = Routing::kSkipAllToAll;
  config.allreduce_world_size = 3;
  EXPECT_EQ(message_of(config), "allreduce_world_size is 3; it must divide the number of ranks (2), or be 0");
  config.allreduce_world_size = 2;
  config.capacity_factor = 1;
  EXPECT_EQ(message_of(config),
            "capacity_factor is 1; it must be 0 where the all-to-all is skipped: there is always room");
  config = good;
  config.hidden = 64;
  config.combine_format = CombineFormat::kFP8;
  EXPECT_EQ(message_of(config), "combine_format: hidden is 64; format fp8 needs a multiple of 128");
  config = good;
  config.input_scale = 0;
  EXPECT_EQ(message_of(config), "input_scale is 0; it must be 2^-100..2^100");
  config = good;
  config.expert_input_scales = {1};
  EXPECT_EQ(message_of(config), "expert_input_scales has 1 entries; format bf16 needs 0");
  config.hidden = 64;
  config.dispatch_format = TokenFormatKind::kNVFP4ByExpert;
  config.expert_input_scales.assign(static_cast<size_t>(good.n_experts), 1);
  EXPECT_TRUE(ExpertParallel::create(*world, config).ok());
  config.expert_input_scales[1] = -1;
  EXPECT_EQ(message_of(config), "expert_input_scales[1] is -1; it must be 2^-100..2^100");
  const auto ep = must(ExpertParallel::create(*world, good));
  EXPECT_EQ(ep->all_reduce(0, nullptr, 0).message(),
            "all_reduce: outputs are whole unless routing skips the all-to-all");
  EXPECT_EQ(world->rank(0).allocate<double>(size_t{1} << 61).status().message(),
            "allocate: 2305843009213693952 elements of 8 bytes exceed 64 bits");
  config = good;
  config.protocol = Protocol::kDirect;
  config.combine_format = CombineFormat::kFP8;
  const auto quantised = must(ExpertParallel::create(*world, config));
  EXPECT_EQ(must(quantised->row_buffers(0)).expert_outputs, nullptr);
  EXPECT_NE(must(quantised->row_buffers(0)).encoded_outputs, nullptr);
}

}  // namespace
}  // namespace switchyard
