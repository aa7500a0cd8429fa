// Multi-head latent attention on every target that is here, against plain loops.
#include "attention_fixture.hpp"
#include "sweep.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using reference::AttentionCase;
using reference::AttentionHarness;
using testing_support::compare;
using testing_support::compare_among_nans;
using testing_support::kFewCases;
using testing_support::must;
using testing_support::repeats;
using testing_support::sweep;

// 16 heads, as 128 heads over eight GPUs.
AttentionCase latent_case() {
  AttentionCase attention_case{.num_heads = 16};
  reference::make_latent(attention_case);
  return attention_case;
}

class MlaTest : public testing_support::AttentionOnTarget {};

INSTANTIATE_TEST_SUITE_P(Targets, MlaTest, testing_support::kAttentionTargets,
                         testing_support::name_of_target);

TEST_P(MlaTest, EveryNumberOfKeys) {
  for (const int num_keys : sweep({1, 63, 64, 65, 127, 128, 200, 0, 320})) {
    AttentionCase attention_case = latent_case();
    attention_case.query_lens = {1, 1};
    attention_case.key_lens = {num_keys, num_keys};
    attention_case.is_dense = true;
    attention_case.num_blocks = 1;
    EXPECT_EQ(compare(rank(), attention_case), "") << num_keys << " keys";
  }
}

TEST_P(MlaTest, EveryNumberOfHeads) {
  for (const int num_heads : sweep({128, 1, 8, 64, 20})) {
    AttentionCase attention_case = latent_case();
    attention_case.num_heads = num_heads;
    attention_case.query_lens = {1, 1};
    attention_case.key_lens = {150, 70};
    attention_case.num_blocks = 3;
    EXPECT_EQ(compare(rank(), attention_case), "") << num_heads << " heads";
  }
}

TEST_P(MlaTest, SeveralQueriesAreCausalAmongThemselves) {
  for (const int num_queries : sweep({2, 16, 5}))
    for (const bool causal : {true, false}) {
      AttentionCase attention_case = latent_case();
      attention_case.query_lens = {num_queries, 1, num_queries};
      attention_case.key_lens = {130, 60, num_queries / 2};
      attention_case.causal = causal;
      attention_case.num_blocks = 2;
      EXPECT_EQ(compare(rank(), attention_case), "")
          << num_queries << " queries" << (causal ? ", causal" : "");
    }
}

TEST_P(MlaTest, MoreQueriesThanDecodingHas) {
  for (const int num_queries : sweep({17, 64, 200, 65}))
    for (const bool causal : repeats({false, true})) {
      AttentionCase attention_case = latent_case();
      attention_case.num_heads = num_queries == 17 ? 70 : num_queries == 64 ? 20 : 2;
      attention_case.query_lens = {num_queries, 1, 0, num_queries / 2};
      attention_case.key_lens = {num_queries + 70, 130, 20, num_queries / 3};
      attention_case.causal = causal;
      attention_case.num_blocks = 3;
      const std::string name = std::to_string(num_queries) + " queries" + (causal ? ", causal" : "");
      EXPECT_EQ(compare(rank(), attention_case), "") << name;
      if (num_queries != 65) continue;
      attention_case.window = 40;
      EXPECT_EQ(compare(rank(), attention_case), "") << name << ", a window";
      attention_case.page_size = 32;
      EXPECT_EQ(compare(rank(), attention_case), "") << name << ", a window, in pages";
    }
}

// The keys of each tile are split, and some splits see none of them.
TEST_P(MlaTest, SplitsOfSeveralTiles) {
  AttentionCase attention_case = latent_case();
  attention_case.num_heads = 8;
  attention_case.query_lens = {30, 17};
  attention_case.key_lens = {700, 20};
  attention_case.causal = true;
  attention_case.num_blocks = 30;
  EXPECT_GT(must(AttentionHarness::create(rank(), attention_case))->choice().num_splits, 1u);
  EXPECT_EQ(compare(rank(), attention_case, 2), "");
}

TEST_P(MlaTest, PagesOfAnySize) {
  for (const int page_size : sweep({16, 64, 256, 32, 128})) {
    AttentionCase attention_case = latent_case();
    attention_case.query_lens = {1, 2, 1};
    attention_case.key_lens = {300, 17, 64};
    attention_case.page_size = page_size;
    attention_case.causal = true;
    attention_case.num_blocks = 2;
    EXPECT_EQ(compare(rank(), attention_case), "") << "pages of " << page_size;
  }
}

// The last split of a tile combines them all; what it counted is 0 again in the next launch.
TEST_P(MlaTest, SplitsAreCombinedInEveryLaunch) {
  AttentionCase attention_case = latent_case();
  attention_case.query_lens = {1, 2};
  attention_case.key_lens = {1300, 40};
  attention_case.num_blocks = 4;
  const auto harness = must(AttentionHarness::create(rank(), attention_case));
  EXPECT_GT(harness->choice().num_splits, 1u);
  EXPECT_EQ(compare(rank(), attention_case, 3), "");
  attention_case.num_heads = 128;
  attention_case.page_size = 64;
  EXPECT_EQ(compare(rank(), attention_case, kFewCases ? 1 : 2), "");
}

TEST_P(MlaTest, NeighboursThatAreNoNumbersDoNotLeak) {
  EXPECT_EQ(compare_among_nans(rank(), latent_case()), "");
  AttentionCase attention_case = latent_case();
  attention_case.num_heads = 2;
  EXPECT_EQ(compare_among_nans(rank(), attention_case, {90, 1, 40, 0}), "") << "many queries";
}

TEST_P(MlaTest, WindowsSchedulersAndKeyLengths) {
  AttentionCase attention_case = latent_case();
  attention_case.query_lens = {3, 3};
  attention_case.key_lens = {200, 90};
  attention_case.causal = true;
  attention_case.window = 100;
  for (const TileSchedulerName& scheduler : kTileSchedulers) {
    attention_case.scheduler = scheduler.kind;
    EXPECT_EQ(compare(rank(), attention_case), "") << scheduler.name;
  }
  attention_case.is_dense = attention_case.has_key_lengths = true;
  EXPECT_EQ(compare(rank(), attention_case), "") << "key_lengths";
  attention_case.wants_lse = false;
  EXPECT_EQ(compare(rank(), attention_case), "") << "no lse";
}

TEST_P(MlaTest, NothingToDoIsDone) {
  AttentionCase attention_case = latent_case();
  EXPECT_EQ(compare(rank(), attention_case), "");
  attention_case.query_lens = {0, 0};
  attention_case.key_lens = {10, 0};
  EXPECT_EQ(compare(rank(), attention_case), "");
}

TEST_P(MlaTest, AGraphReplaysSplits) {
  AttentionCase attention_case = latent_case();
  attention_case.query_lens = {1};
  attention_case.key_lens = {1100};
  attention_case.num_blocks = 2;
  const auto harness = must(AttentionHarness::create(rank(), attention_case));
  const auto graph = must(world().capture([&] { return harness->launch(); }));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graph->launch().ok());
  ASSERT_TRUE(world().synchronize().ok());
  EXPECT_EQ(must(harness->compare()).first_bad, "");
}

TEST_P(MlaTest, BadShapesAndTensorsAreRefusedByName) {
  const auto refusal = [&](auto change) {
    AttentionShape shape{.head_dim = kLatentDim,
                         .num_heads = 16,
                         .max_query_len = 1,
                         .max_key_len = 64,
                         .num_query_rows = 1,
                         .num_key_rows = 64,
                         .scale = 0.1f,
                         .value_dim = kLatentValueDim};
    change(shape);
    return Attention::create(rank(), shape).status().message();
  };
  EXPECT_EQ(refusal([](AttentionShape&) {}), "");
  EXPECT_EQ(refusal([](AttentionShape& s) { s.head_dim = 128; }).rfind("value_dim is 512", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.value_dim = 0; }).rfind("head_dim is 576", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.value_dim = 64; }).rfind("value_dim is 64", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.num_kv_heads = 2; }).rfind("num_kv_heads is 2", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.max_query_len = s.num_query_rows = 17; }), "");
  EXPECT_EQ(refusal([](AttentionShape& s) { s.scale = 0; }).rfind("scale is 0", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.soft_cap = 1; }).rfind("soft_cap is 1", 0), 0u);

  AttentionCase attention_case = latent_case();
  attention_case.query_lens = attention_case.key_lens = {1};
  const auto harness = must(AttentionHarness::create(rank(), attention_case));
  AttentionTensors tensors = harness->tensors();
  tensors.values = tensors.keys;
  EXPECT_EQ(harness->attention().run(tensors).message().rfind("values is given", 0), 0u);
  tensors = harness->tensors();
  tensors.sinks = tensors.lse;
  EXPECT_EQ(harness->attention().run(tensors).message().rfind("sinks is given", 0), 0u);
}

// Many interleavings of the roles, on a memory that keeps what no barrier made it give.
TEST(MlaSeeds, RolesInAnyOrder) {
  for (uint64_t seed = 1; seed <= (testing_support::kFewRepeats ? 1u : 3u); ++seed)
    for (const bool weak : {false, true}) {
      const auto world =
          must(World::create({.target = TargetChoice::kHost,
                              .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = weak}}));
      AttentionCase attention_case = latent_case();
      attention_case.num_heads = 2;
      attention_case.query_lens = {1, 2};
      attention_case.key_lens = {200, 90};
      attention_case.num_blocks = 1;
      EXPECT_EQ(compare(world->rank(0), attention_case), "") << "seed " << seed << (weak ? ", weak" : "");
      attention_case.key_lens = {600, 30};
      attention_case.page_size = 32;
      attention_case.num_blocks = 4;
      EXPECT_EQ(compare(world->rank(0), attention_case), "")
          << "splits, seed " << seed << (weak ? ", weak" : "");
    }
}

}  // namespace
}  // namespace switchyard
