// Attention over fp8 keys and values on every target that is here, against plain loops.
#include "attention_fixture.hpp"
#include "sweep.hpp"
#include "switchyard/attention.hpp"

namespace switchyard {
namespace {

using reference::AttentionCase;
using reference::AttentionHarness;
using testing_support::compare;
using testing_support::compare_among_nans;
using testing_support::kFewCases;
using testing_support::must;
using testing_support::sweep;

AttentionCase fp8_case(int head_dim) {
  return {.num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .kv_format = KvFormat::kFP8};
}

class Fp8AttentionTest : public testing_support::AttentionOnTarget {};

INSTANTIATE_TEST_SUITE_P(Targets, Fp8AttentionTest, testing_support::kAttentionTargets,
                         testing_support::name_of_target);

TEST_P(Fp8AttentionTest, EveryHeadDimensionAndNumberOfKeys) {
  for (const int head_dim : {64, 128, 256})
    for (const int num_keys : sweep({1, 127, 128, 129, 500, 0})) {
      AttentionCase attention_case = fp8_case(head_dim);
      attention_case.query_lens = {1, 1};
      attention_case.key_lens = {num_keys, num_keys};
      attention_case.is_dense = true;
      attention_case.num_blocks = 1;
      EXPECT_EQ(compare(rank(), attention_case, 2), "") << "head_dim " << head_dim << ", keys " << num_keys;
    }
}

TEST_P(Fp8AttentionTest, SplitsPagesAndSeveralQueries) {
  for (const int head_dim : sweep({128, 64, 256}))
    for (const int page_size : sweep({0, 16, 64, 256})) {
      AttentionCase attention_case = fp8_case(head_dim);
      attention_case.query_lens = {1, 3, 0};
      attention_case.key_lens = {1300, 40, 7};
      attention_case.causal = true;
      attention_case.page_size = page_size;
      attention_case.num_blocks = 8;
      EXPECT_EQ(compare(rank(), attention_case, 2), "")
          << "head_dim " << head_dim << ", pages of " << page_size;
    }
}

// Warps share the rows and the keys of a tile: 1, 2 or 4 of them have different rows.
TEST_P(Fp8AttentionTest, EveryNumberOfRows) {
  for (const int num_queries : sweep({1, 2, 3, 5, 16})) {
    AttentionCase attention_case = fp8_case(num_queries == 2 ? 256 : 128);
    attention_case.num_heads = 16;  // eight for each K/V head
    attention_case.query_lens = {num_queries, 1, num_queries};
    attention_case.key_lens = {290, 20, 140};
    attention_case.causal = true;
    attention_case.num_blocks = 3;
    EXPECT_EQ(compare(rank(), attention_case, 2), "") << num_queries << " queries";
  }
}

// Several tiles for each sequence and head, beside sequences of one query.
TEST_P(Fp8AttentionTest, MoreQueriesThanATileHolds) {
  for (const int num_queries : sweep({17, 64, 65, 200}))
    for (const bool causal : {true, false}) {
      AttentionCase attention_case = fp8_case(num_queries == 64 ? 256 : num_queries == 65 ? 64 : 128);
      attention_case.query_lens = {num_queries, 1, 0, num_queries / 2, 1};
      attention_case.key_lens = {num_queries + 60, 300, 20, num_queries / 2, 0};
      attention_case.causal = causal;
      attention_case.num_blocks = 3;
      const std::string name = std::to_string(num_queries) + " queries" + (causal ? ", causal" : "");
      EXPECT_EQ(compare(rank(), attention_case, 2), "") << name;
      attention_case.window = 40;
      EXPECT_EQ(compare(rank(), attention_case), "") << name << ", a window";
      attention_case.window = 0;
      attention_case.page_size = 16;
      EXPECT_EQ(compare(rank(), attention_case), "") << name << ", in pages";
    }
}

TEST_P(Fp8AttentionTest, QueriesLongerThanKeysSeeNothingAtFirst) {
  AttentionCase attention_case = fp8_case(128);
  attention_case.query_lens = {150, 40, 30};
  attention_case.key_lens = {20, 39, 0};
  attention_case.causal = true;
  EXPECT_EQ(compare(rank(), attention_case), "");
}

// Few queries and many keys: the keys of each tile are split, and some splits see none of them.
TEST_P(Fp8AttentionTest, SplitsOfSeveralTiles) {
  AttentionCase attention_case = fp8_case(128);
  attention_case.query_lens = {70, 20};
  attention_case.key_lens = {1100, 600};
  attention_case.causal = true;
  attention_case.num_blocks = 40;
  for (const int window : {0, 300}) {
    attention_case.window = window;
    EXPECT_GT(must(AttentionHarness::create(rank(), attention_case))->choice().num_splits, 1u);
    EXPECT_EQ(compare(rank(), attention_case, 2), "") << "window " << window;
  }
}

TEST_P(Fp8AttentionTest, EverySchedulerAndOrder) {
  for (const TileSchedulerName& scheduler : kTileSchedulers)
    for (const OrderName& order : sweep(kOrders))
      for (const bool is_dense : sweep({true, false})) {
        AttentionCase attention_case = fp8_case(64);
        attention_case.query_lens = is_dense ? std::vector<int>{90, 90} : std::vector<int>{90, 0, 40};
        attention_case.causal = true;
        attention_case.scheduler = scheduler.kind;
        attention_case.order = order.order;
        attention_case.is_dense = is_dense;
        attention_case.num_blocks = 2;
        EXPECT_EQ(compare(rank(), attention_case), "")
            << scheduler.name << ' ' << order.name << (is_dense ? " dense" : "");
      }
}

TEST_P(Fp8AttentionTest, WindowsSchedulersAndKeyLengths) {
  AttentionCase attention_case = fp8_case(64);
  attention_case.query_lens = {3, 3};
  attention_case.key_lens = {400, 90};
  attention_case.causal = true;
  attention_case.window = 150;
  for (const TileSchedulerName& scheduler : kTileSchedulers) {
    attention_case.scheduler = scheduler.kind;
    EXPECT_EQ(compare(rank(), attention_case), "") << scheduler.name;
  }
}

TEST_P(Fp8AttentionTest, NeighboursThatAreNoNumbersDoNotLeak) {
  EXPECT_EQ(compare_among_nans(rank(), fp8_case(128)), "");
  EXPECT_EQ(compare_among_nans(rank(), fp8_case(64), {90, 1, 40, 0}), "") << "many queries";
}

// As a cache has it that nothing was written to: all keys weigh the same, and masked ones nothing.
TEST_P(Fp8AttentionTest, AScaleOfZeroMeansKeysOfZero) {
  AttentionCase attention_case = fp8_case(128);
  attention_case.query_lens = {3, 1};
  attention_case.key_lens = {140, 1300};
  attention_case.causal = true;
  attention_case.num_blocks = 8;
  attention_case.has_empty_head = true;
  EXPECT_EQ(compare(rank(), attention_case, 2), "");
}

TEST_P(Fp8AttentionTest, ScoresMayBeCappedAndHaveSinks) {
  for (const int head_dim : sweep({64, 128, 256}))
    for (const float soft_cap : {0.0f, 2.0f})
      for (const bool causal : {false, true}) {
        AttentionCase attention_case = fp8_case(head_dim);
        attention_case.query_lens = {40, 20};
        attention_case.key_lens = {130, 0};
        attention_case.causal = causal;
        attention_case.scale = 0.4f;
        attention_case.soft_cap = soft_cap;
        attention_case.has_sinks = soft_cap == 0 || causal;
        attention_case.num_blocks = 4;
        const std::string name = "head_dim " + std::to_string(head_dim) + ", cap " +
                                 std::to_string(soft_cap) + (causal ? ", causal" : ", full");
        EXPECT_EQ(compare(rank(), attention_case), "") << name;
        attention_case.query_lens = {1, 2};
        attention_case.key_lens = {1100, 30};
        attention_case.num_blocks = 8;
        EXPECT_GT(must(AttentionHarness::create(rank(), attention_case))->choice().num_splits, 1u);
        EXPECT_EQ(compare(rank(), attention_case, 2), "") << name << ", decoding";
        attention_case.has_empty_head = true;
        EXPECT_EQ(compare(rank(), attention_case), "") << name << ", a head of zeros";
      }
  AttentionCase among_nans = fp8_case(128);
  among_nans.soft_cap = 1;
  among_nans.has_sinks = true;
  EXPECT_EQ(compare_among_nans(rank(), among_nans), "");
}

TEST_P(Fp8AttentionTest, NothingToDoIsDone) {
  AttentionCase attention_case = fp8_case(128);
  EXPECT_EQ(compare(rank(), attention_case, 2), "");
  attention_case.query_lens = {0, 0};
  attention_case.key_lens = {10, 0};
  EXPECT_EQ(compare(rank(), attention_case, 2), "");
}

TEST_P(Fp8AttentionTest, BadShapesAndTensorsAreRefusedByName) {
  const auto refusal = [&](auto change) {
    AttentionShape shape{.num_heads = 2,
                         .max_query_len = 1,
                         .max_key_len = 64,
                         .num_query_rows = 1,
                         .num_key_rows = 64,
                         .kv_format = KvFormat::kFP8};
    change(shape);
    return Attention::create(rank(), shape).status().message();
  };
  EXPECT_EQ(refusal([](AttentionShape&) {}), "");
  EXPECT_EQ(refusal([](AttentionShape& s) { s.max_query_len = s.num_query_rows = 17; }), "");
  EXPECT_EQ(refusal([](AttentionShape& s) { s.candidate = 1; }).rfind("candidate is 1", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.soft_cap = 1; }), "");
  EXPECT_EQ(refusal([](AttentionShape& s) { s.soft_cap = -1; }).rfind("soft_cap is -1", 0), 0u);
  EXPECT_EQ(refusal([](AttentionShape& s) { s.soft_cap = 1001; }).rfind("soft_cap is 1001; it must be", 0),
            0u);
  EXPECT_EQ(
      refusal([](AttentionShape& s) { s.kv_format = static_cast<KvFormat>(7); }).rfind("kv_format is 7", 0),
      0u);

  AttentionCase attention_case = fp8_case(64);
  attention_case.query_lens = attention_case.key_lens = {1};
  const auto harness = must(AttentionHarness::create(rank(), attention_case));
  const auto refused = [&](auto change) {
    AttentionTensors tensors = harness->tensors();
    change(tensors);
    return harness->attention().run(tensors).message();
  };
  EXPECT_EQ(refused([](AttentionTensors& t) { t.key_codes = nullptr; }).rfind("key_codes is null", 0), 0u);
  EXPECT_EQ(refused([](AttentionTensors& t) { t.value_codes += 1; }).rfind("value_codes is not", 0), 0u);
  EXPECT_EQ(refused([](AttentionTensors& t) { t.value_scales = nullptr; }).rfind("value_scales is null", 0),
            0u);
}

// Many interleavings of the roles, on a memory that keeps what no barrier made it give.
TEST(Fp8AttentionSeeds, RolesInAnyOrder) {
  for (uint64_t seed = 1; seed <= (kFewCases ? 1u : 3u); ++seed)
    for (const bool weak : {false, true}) {
      const auto world =
          must(World::create({.target = TargetChoice::kHost,
                              .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = weak}}));
      AttentionCase attention_case = fp8_case(seed == 2 ? 128 : 64);
      attention_case.query_lens = {1, 2};
      attention_case.key_lens = {700, 90};
      attention_case.num_blocks = 2;
      EXPECT_EQ(compare(world->rank(0), attention_case, 2), "") << "seed " << seed << (weak ? ", weak" : "");
    }
}

}  // namespace
}  // namespace switchyard
