// Attention on every target that is here, against plain loops.
#include "switchyard/attention.hpp"

#include "attention_fixture.hpp"
#include "sweep.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using reference::AttentionCase;
using reference::AttentionHarness;
using testing_support::compare;
using testing_support::kFewCases;
using testing_support::must;
using testing_support::repeats;
using testing_support::sweep;

class AttentionTest : public testing_support::AttentionOnTarget {};

INSTANTIATE_TEST_SUITE_P(Targets, AttentionTest, testing_support::kAttentionTargets,
                         testing_support::name_of_target);

TEST_P(AttentionTest, EveryHeadDimensionFullAndCausal) {
  const int length = kFewCases ? 70 : 200;
  for (const int head_dim : {64, 128, 256})
    for (const bool causal : {false, true})
      EXPECT_EQ(compare(rank(), {.query_lens = {length, length},
                                 .num_heads = 2,
                                 .num_kv_heads = 2,
                                 .head_dim = head_dim,
                                 .causal = causal,
                                 .is_dense = true,
                                 .num_blocks = 3}),
                "")
          << "head_dim " << head_dim << (causal ? ", causal" : ", full");
}

TEST_P(AttentionTest, RaggedSequencesOfAnyLengthWithNeighboursThatAreNoNumbers) {
  for (const int sequence_of_nans : sweep({-1, 4, 5}))
    for (const bool causal : sweep({false, true}))
      EXPECT_EQ(compare(rank(), {.query_lens = {0, 1, 129, 0, 63, 300, 17},
                                 .num_heads = 2,
                                 .num_kv_heads = 1,
                                 .causal = causal,
                                 .num_blocks = 4,
                                 .sequence_of_nans = sequence_of_nans}),
                "")
          << (causal ? "causal" : "full") << ", NaN in sequence " << sequence_of_nans;
}

TEST_P(AttentionTest, LongSequencesOfHeadDimension64TakeWiderTiles) {
  const AttentionCase attention_case{
      .query_lens = {1100, 70}, .num_heads = 1, .causal = true, .num_blocks = 2};
  const auto harness = must(AttentionHarness::create(rank(), attention_case));
  EXPECT_EQ(harness->choice().kind, AttentionKind::kMasked);
  EXPECT_EQ(compare(rank(), attention_case), "");
  EXPECT_EQ(kind_of_attention(64, 1024, 1024, true), AttentionKind::kShortMasked);
  EXPECT_EQ(kind_of_attention(64, 1024, 1025, true), AttentionKind::kMasked);
  EXPECT_EQ(kind_of_attention(128, 1024, 1024, true), AttentionKind::kMasked);
}

TEST_P(AttentionTest, WiderTilesWithWindowsAndPages) {
  for (const int page_size : sweep({0, 16, 256}))
    for (const int window : sweep({0, 40, 500}))
      for (const bool causal : repeats({false, true})) {
        const AttentionCase attention_case{.query_lens = {1030, 70},
                                           .num_heads = 1,
                                           .causal = causal,
                                           .window = window,
                                           .page_size = page_size,
                                           .num_blocks = 2};
        EXPECT_EQ(compare(rank(), attention_case), "")
            << "pages of " << page_size << ", window " << window << (causal ? ", causal" : "");
      }
}

// What `bench attention --tune` compares must be right, whichever of the kernels is chosen.
TEST_P(AttentionTest, EveryCandidateForEveryKindOfBatch) {
  for (const int head_dim : {64, 128, 256})
    for (const bool causal : {false, true})
      for (int candidate = 0;
           candidate < num_candidates(head_dim, causal ? AttentionKind::kMasked : AttentionKind::kFull);
           ++candidate)
        for (const int page_size : repeats({0, 16})) {
          // With head dimension 64 longer than what the short kernel takes.
          AttentionCase attention_case{.query_lens = {head_dim == 64 ? 1100 : 400, 0, 129, 40},
                                       .num_heads = 1,
                                       .head_dim = head_dim,
                                       .causal = causal,
                                       .page_size = page_size,
                                       .candidate = candidate,
                                       .num_blocks = 2,
                                       .sequence_of_nans = 2};
          EXPECT_EQ(compare(rank(), attention_case), "") << candidate << " of head_dim " << head_dim;
          if (!causal) continue;
          attention_case.window = 200;
          EXPECT_EQ(compare(rank(), attention_case), "") << candidate << ", a window";
        }
}

TEST_P(AttentionTest, ACandidateThatIsNotThereIsRefused) {
  const AttentionShape shape{
      .max_query_len = 64, .max_key_len = 64, .num_query_rows = 64, .num_key_rows = 64, .candidate = 9};
  const auto attention = Attention::create(rank(), shape);
  EXPECT_EQ(attention.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(attention.status().to_string().find("candidate is 9; head_dim 128 has"), std::string::npos)
      << attention.status().to_string();
}

// Blocks of keys end where a sequence, a window or the diagonal leaves whole parts of them to nobody.
TEST_P(AttentionTest, LastBlocksOfAnyLength) {
  for (const int head_dim : {64, 128, 256})
    for (const int num_keys : sweep({1, 16, 32, 33, 64, 65, 80, 81, 96, 112, 128, 144, 192, 129}))
      for (const bool causal : repeats({false, true}))
        EXPECT_EQ(compare(rank(), {.query_lens = {70, 17, 17},
                                   .key_lens = {num_keys, 100, num_keys},
                                   .num_heads = 1,
                                   .head_dim = head_dim,
                                   .causal = causal,
                                   .num_blocks = 1,
                                   .sequence_of_nans = 1}),
                  "")
            << "head_dim " << head_dim << ", keys " << num_keys << (causal ? ", causal" : ", full");
}

TEST_P(AttentionTest, QueriesShorterThanKeysStandAtTheEnd) {
  for (const bool causal : {false, true})
    EXPECT_EQ(
        compare(rank(), {.query_lens = {20, 1, 150, 30}, .key_lens = {200, 77, 150, 0}, .causal = causal}),
        "")
        << (causal ? "causal" : "full");
}

TEST_P(AttentionTest, QueriesLongerThanKeysSeeNothingAtFirst) {
  EXPECT_EQ(compare(rank(), {.query_lens = {150, 40}, .key_lens = {20, 39}, .causal = true}), "");
}

TEST_P(AttentionTest, AWindowBoundsWhatAQuerySees) {
  for (const int head_dim : sweep({64, 128}))
    for (const int window : sweep({1, 50, 200}))
      for (const bool causal : {false, true})
        EXPECT_EQ(compare(rank(), {.query_lens = {333, 40},
                                   .num_heads = 1,
                                   .head_dim = head_dim,
                                   .causal = causal,
                                   .window = window}),
                  "")
            << "head_dim " << head_dim << ", window " << window << (causal ? ", causal" : "");
}

TEST_P(AttentionTest, EverySchedulerAndOrder) {
  for (const TileSchedulerName& scheduler : kTileSchedulers)
    for (const OrderName& order : sweep(kOrders))
      for (const bool is_dense : sweep({true, false})) {
        AttentionCase attention_case{.query_lens = {210, 0, 70},
                                     .causal = true,
                                     .scheduler = scheduler.kind,
                                     .order = order.order,
                                     .num_blocks = 2};
        if (is_dense) attention_case.query_lens = {210, 210};
        attention_case.is_dense = is_dense;
        EXPECT_EQ(compare(rank(), attention_case), "")
            << scheduler.name << ' ' << order.name << (is_dense ? " dense" : "");
      }
}

TEST_P(AttentionTest, DecodingSplitsTheKeys) {
  for (const int head_dim : sweep({64, 256, 128}))
    for (const int num_tokens : sweep({1, 3})) {
      AttentionCase attention_case{.query_lens = {num_tokens, num_tokens},
                                   .key_lens = {1300, 40},
                                   .num_heads = 10,
                                   .num_kv_heads = 2,
                                   .head_dim = head_dim,
                                   .causal = true,
                                   .num_blocks = 8};
      auto harness = must(AttentionHarness::create(rank(), attention_case));
      EXPECT_EQ(harness->choice().kind, AttentionKind::kDecode);
      EXPECT_GT(harness->choice().num_splits, 1u);
      EXPECT_EQ(compare(rank(), attention_case), "") << "head_dim " << head_dim << ", tokens " << num_tokens;
    }
}

TEST_P(AttentionTest, RowsOfNoSequenceAreLeftAlone) {
  for (const int head_dim : sweep({64, 128, 256}))
    for (const int num_rows_before : {0, 5})
      for (const bool causal : {false, true}) {
        AttentionCase attention_case{.query_lens = {100, 30},
                                     .num_heads = 1,
                                     .head_dim = head_dim,
                                     .causal = causal,
                                     .num_rows_before = num_rows_before,
                                     .num_spare_rows = 3};
        EXPECT_EQ(compare(rank(), attention_case), "")
            << "head_dim " << head_dim << ", rows before " << num_rows_before << (causal ? ", causal" : "");
        attention_case.query_lens = {1, 2};
        attention_case.key_lens = {40, 3};
        EXPECT_EQ(compare(rank(), attention_case), "") << "decoding, head_dim " << head_dim;
      }
  AttentionCase decoding{.query_lens = {1, 2}, .key_lens = {1300, 40}, .num_blocks = 4, .num_spare_rows = 3};
  const auto harness = must(AttentionHarness::create(rank(), decoding));
  EXPECT_GT(harness->choice().num_splits, 1u);
  EXPECT_EQ(compare(rank(), decoding), "");
}

// The last split of a row combines them all, in whichever block it is; what it counted is 0 again.
TEST_P(AttentionTest, SplitsAreCombinedInEveryLaunch) {
  AttentionCase attention_case{.query_lens = std::vector<int>(5, 1),
                               .key_lens = {1100, 0, 513, 1100, 511},
                               .num_heads = 16,
                               .num_kv_heads = 4,
                               .num_blocks = 41};  // more than there are tiles, so that keys are split
  const auto harness = must(AttentionHarness::create(rank(), attention_case));
  EXPECT_GT(harness->choice().num_splits, 1u);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(harness->launch().ok());
    EXPECT_EQ(must(harness->compare()).first_bad, "");
  }
}

TEST_P(AttentionTest, DecodingWithMoreQueriesThanATileHolds) {
  EXPECT_EQ(compare(rank(), {.query_lens = {16, 2, 0, 16},
                             .key_lens = {100, 600, 30, 16},
                             .num_heads = 16,
                             .num_kv_heads = 1,
                             .causal = true}),
            "");
}

TEST_P(AttentionTest, AWindowBoundsWhatADecodingQuerySees) {
  for (const int window : sweep({1, 50, 700}))
    for (const bool causal : {false, true}) {
      const AttentionCase attention_case{.query_lens = {3, 1, 2},
                                         .key_lens = {1300, 40, 0},
                                         .num_heads = 4,
                                         .head_dim = 128,
                                         .causal = causal,
                                         .window = window,
                                         .num_blocks = 8};
      auto harness = must(AttentionHarness::create(rank(), attention_case));
      EXPECT_EQ(harness->choice().kind, AttentionKind::kDecode);
      EXPECT_EQ(compare(rank(), attention_case), "") << "window " << window << (causal ? ", causal" : "");
    }
}

TEST_P(AttentionTest, ScoresHaveAnyScale) {
  for (const float scale : {0.01f, 0.6f})
    for (const bool is_decode : {false, true}) {
      AttentionCase attention_case{.query_lens = {100, 20}, .causal = true, .scale = scale};
      if (is_decode) attention_case = {.query_lens = {1, 2}, .key_lens = {1100, 30}, .scale = scale};
      EXPECT_EQ(compare(rank(), attention_case), "") << scale << (is_decode ? ", decoding" : "");
    }
}

TEST_P(AttentionTest, ScoresMayBeCappedAndHaveSinks) {
  for (const int head_dim : sweep({64, 128, 256}))
    for (const float soft_cap : {0.0f, 2.0f})
      for (const bool causal : {false, true}) {
        AttentionCase attention_case{.query_lens = {90, 20},
                                     .key_lens = {130, 0},
                                     .head_dim = head_dim,
                                     .causal = causal,
                                     .scale = 0.4f,
                                     .soft_cap = soft_cap,
                                     .has_sinks = soft_cap == 0 || causal,
                                     .num_blocks = 4};
        const std::string name = "head_dim " + std::to_string(head_dim) + ", cap " +
                                 std::to_string(soft_cap) + (causal ? ", causal" : ", full");
        EXPECT_EQ(compare(rank(), attention_case), "") << name;
        attention_case.query_lens = {1, 2};
        attention_case.key_lens = {1100, 30};
        EXPECT_GT(must(AttentionHarness::create(rank(), attention_case))->choice().num_splits, 1u);
        EXPECT_EQ(compare(rank(), attention_case), "") << name << ", decoding";
      }
  // The kernel of long sequences that are masked, where head dimension 64 has another for short ones.
  EXPECT_EQ(compare(rank(), {.query_lens = {1030},
                             .num_heads = 1,
                             .causal = true,
                             .soft_cap = 1,
                             .has_sinks = true,
                             .num_blocks = 2}),
            "");
}

TEST_P(AttentionTest, NobodyHasToWantTheLogSumExp) {
  EXPECT_EQ(compare(rank(), {.query_lens = {100, 20}, .causal = true, .wants_lse = false}), "");
  EXPECT_EQ(compare(rank(), {.query_lens = {1, 2}, .key_lens = {40, 3}, .wants_lse = false}), "");
  const AttentionCase in_parts{
      .query_lens = {1, 2}, .key_lens = {1100, 3}, .wants_lse = false, .num_blocks = 4};
  EXPECT_GT(must(AttentionHarness::create(rank(), in_parts))->choice().num_splits, 1u);
  EXPECT_EQ(compare(rank(), in_parts), "");
}

// Keys as a cache holds them that has room for the most in every sequence.
TEST_P(AttentionTest, KeyLengthsWithoutPages) {
  for (const bool is_dense : sweep({true, false}))
    for (const bool causal : {false, true}) {
      EXPECT_EQ(compare(rank(), {.query_lens = {30, 30, 30, 30},
                                 .key_lens = {150, 31, 0, 90},
                                 .causal = causal,
                                 .is_dense = is_dense,
                                 .has_key_lengths = true}),
                "")
          << (is_dense ? "dense" : "ragged") << (causal ? ", causal" : "");
      EXPECT_EQ(compare(rank(), {.query_lens = {2, 2, 2},
                                 .key_lens = {5, 1200, 0},
                                 .num_heads = 4,
                                 .causal = causal,
                                 .is_dense = is_dense,
                                 .has_key_lengths = true,
                                 .num_blocks = 4}),
                "")
          << "decoding, " << (is_dense ? "dense" : "ragged") << (causal ? ", causal" : "");
    }
}

TEST_P(AttentionTest, PagedKeysAndValues) {
  for (const int page_size : sweep({16, 64, 256}))
    for (const int head_dim : {64, 128, 256}) {
      EXPECT_EQ(compare(rank(), {.query_lens = {1, 2, 1},
                                 .key_lens = {300, 31, 0},
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .head_dim = head_dim,
                                 .page_size = page_size}),
                "")
          << "decoding, head_dim " << head_dim << ", pages of " << page_size;
    }
  EXPECT_EQ(
      compare(rank(), {.query_lens = {100, 30}, .key_lens = {140, 30}, .causal = true, .page_size = 32}), "");
}

TEST_P(AttentionTest, AGraphReplaysSplitsAndQueue) {
  for (const bool is_decode : {false, true}) {
    AttentionCase attention_case{.query_lens = {150, 40}, .causal = true, .num_blocks = 2};
    if (is_decode) attention_case = {.query_lens = {1, 1}, .key_lens = {1100, 3}, .num_blocks = 4};
    auto harness = must(AttentionHarness::create(rank(), attention_case));
    auto graph = must(world().capture([&] { return harness->launch(); }));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(graph->launch().ok());
    EXPECT_EQ(must(harness->compare()).first_bad, "");
  }
}

TEST_P(AttentionTest, AutomaticSaysWhy) {
  const auto choice = [&](const AttentionCase& attention_case) {
    return must(AttentionHarness::create(rank(), attention_case))->choice();
  };
  const AttentionChoice even = choice({.query_lens = {64, 64}, .is_dense = true});
  EXPECT_EQ(even.scheduler, TileSchedulerKind::kTile);
  const AttentionChoice uneven = choice({.query_lens = {64, 1600}, .key_lens = {64, 900}});
  EXPECT_EQ(uneven.scheduler, TileSchedulerKind::kQueued);
  EXPECT_EQ(uneven.order, MHASchedule::LPT);
  EXPECT_EQ(choice({.query_lens = {64, 64}, .page_size = 16}).scheduler, TileSchedulerKind::kQueued);
  EXPECT_EQ(choice({.query_lens = {64, 64}, .causal = true, .is_dense = true}).order, MHASchedule::DEFAULT)
      << "short sequences";
  EXPECT_EQ(choice({.query_lens = {64, 64}, .key_lens = {64, 4000}, .causal = true}).order, MHASchedule::LPT)
      << "few queries of many keys";
  const AttentionChoice causal = choice({.query_lens = {2000, 2000}, .causal = true, .is_dense = true});
  EXPECT_EQ(causal.scheduler, TileSchedulerKind::kQueued);
  EXPECT_EQ(causal.order, MHASchedule::LPT);
  EXPECT_NE(even.reason, causal.reason);
}

TEST_P(AttentionTest, TheChoiceIsWhatTheTensorsOfALaunchGet) {
  // Even by its shape; the lengths that come with the tensors are not.
  auto harness = must(AttentionHarness::create(
      rank(), {.query_lens = {64, 64}, .key_lens = {64, 3}, .is_dense = true, .has_key_lengths = true}));
  const AttentionChoice queued = harness->choice();
  EXPECT_EQ(queued.scheduler, TileSchedulerKind::kQueued);
  EXPECT_NE(queued.reason.find("queue"), std::string::npos) << queued.reason;
  AttentionTensors without_lengths = harness->tensors();
  without_lengths.key_lengths = nullptr;
  const AttentionChoice strided = harness->attention().choice(without_lengths);
  EXPECT_EQ(strided.scheduler, TileSchedulerKind::kTile);
  EXPECT_NE(strided.reason, queued.reason);
  EXPECT_EQ(strided.num_blocks, queued.num_blocks);
  ASSERT_TRUE(harness->launch().ok());
  EXPECT_EQ(must(harness->compare()).first_bad, "");
  // What was asked for stays.
  EXPECT_EQ(must(AttentionHarness::create(rank(), {.query_lens = {64, 64},
                                                   .key_lens = {64, 3},
                                                   .is_dense = true,
                                                   .has_key_lengths = true,
                                                   .scheduler = TileSchedulerKind::kTile}))
                ->choice()
                .scheduler,
            TileSchedulerKind::kTile);
}

TEST_P(AttentionTest, NoMoreBlocksThanTilesAreLaunched) {
  const struct {
    AttentionCase attention_case;
    uint32_t num_tiles;
  } cases[] = {{{.query_lens = {64, 64}, .is_dense = true}, 4},
               {{.query_lens = {64, 300}, .key_lens = {10, 70}}, 8},  // two of them past a sequence's end
               {{.query_lens = {64, 64}, .causal = true}, 4},
               {{.query_lens = {1, 1, 1}, .key_lens = {700, 3, 90}}, 6},
               {{.query_lens = {}}, 0}};
  for (const auto& [attention_case, num_tiles] : cases)
    for (const TileSchedulerName& scheduler : sweep(kTileSchedulers)) {
      AttentionCase with_blocks = attention_case;
      with_blocks.scheduler = scheduler.kind;
      with_blocks.num_blocks = 65535;
      auto harness = must(AttentionHarness::create(rank(), with_blocks));
      EXPECT_EQ(harness->choice().num_blocks, num_tiles);
      ASSERT_TRUE(harness->launch().ok());
      EXPECT_EQ(must(harness->compare()).first_bad, "");
    }
}

TEST_P(AttentionTest, NothingToDoIsDone) {
  EXPECT_EQ(compare(rank(), {.query_lens = {}}), "");
  EXPECT_EQ(compare(rank(), {.query_lens = {0, 0}, .key_lens = {5, 0}}), "");
}

// What create() says of a shape that is one change away from a good one.
std::string refusal(Rank& rank, void (*spoil)(AttentionShape&)) {
  AttentionShape shape{.num_heads = 4,
                       .num_kv_heads = 2,
                       .max_query_len = 10,
                       .max_key_len = 10,
                       .num_query_rows = 10,
                       .num_key_rows = 32};
  spoil(shape);
  const auto attention = Attention::create(rank, shape);
  if (attention.ok()) return "made";
  EXPECT_EQ(attention.status().code(), StatusCode::kInvalidArgument);
  return attention.status().message();
}

TEST_P(AttentionTest, BadShapesAreRefusedByName) {
  const struct {
    const char* named;
    void (*spoil)(AttentionShape&);
  } cases[] = {
      {"head_dim is 96", [](AttentionShape& shape) { shape.head_dim = 96; }},
      {"num_heads is 0", [](AttentionShape& shape) { shape.num_heads = 0; }},
      {"num_heads 3 is not a multiple", [](AttentionShape& shape) { shape.num_heads = 3; }},
      {"batch_size is -1", [](AttentionShape& shape) { shape.batch_size = -1; }},
      {"max_query_len 11 exceeds", [](AttentionShape& shape) { shape.max_query_len = 11; }},
      {"max_key_len 33 exceeds", [](AttentionShape& shape) { shape.max_key_len = 33; }},
      {"scale is", [](AttentionShape& shape) { shape.scale = -1; }},
      {"scheduler is 9", [](AttentionShape& shape) { shape.scheduler = TileSchedulerKind{9}; }},
      {"order is -1", [](AttentionShape& shape) { shape.order = MHASchedule{-1}; }},
      {"page_size is 24", [](AttentionShape& shape) { shape.page_size = 24; }},
      {"pages_per_sequence 0", [](AttentionShape& shape) { shape.page_size = 16; }},
      {"num_key_rows is 2147483648", [](AttentionShape& shape) { shape.num_key_rows = 1ll << 31; }},
  };
  EXPECT_EQ(refusal(rank(), [](AttentionShape&) {}), "made");
  for (const auto& bad : cases)
    EXPECT_EQ(refusal(rank(), bad.spoil).rfind(bad.named, 0), 0u) << refusal(rank(), bad.spoil);
}

TEST_P(AttentionTest, BadTensorsAreRefusedByName) {
  auto harness = must(AttentionHarness::create(rank(), {.query_lens = {30, 20}}));
  const auto refused = [&](void (*spoil)(AttentionTensors&)) {
    AttentionTensors tensors = harness->tensors();
    spoil(tensors);
    return harness->attention().run(tensors).message();
  };
  EXPECT_EQ(refused([](AttentionTensors& t) { t.keys = nullptr; }), "keys is null");
  EXPECT_EQ(refused([](AttentionTensors& t) { ++t.output; }), "output is not 16-byte aligned");
  EXPECT_EQ(refused([](AttentionTensors& t) { t.query_offsets = nullptr; }).rfind("query_offsets is null", 0),
            0u);
  EXPECT_EQ(refused([](AttentionTensors& t) { t.key_lengths = t.key_offsets; }).rfind("key_offsets and", 0),
            0u);
  EXPECT_EQ(refused([](AttentionTensors& t) {
              t.page_table = reinterpret_cast<const int32_t*>(t.lse);
            }).rfind("page_table is given", 0),
            0u);
}

// Many interleavings of producer and consumers, on a memory that keeps what no barrier made it give.
TEST(AttentionSeeds, ProducerAndConsumersInAnyOrder) {
  constexpr uint64_t kNumSeeds = testing_support::kFewRepeats ? 1 : 3;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed)
    for (const bool weak : {false, true}) {
      const auto world =
          must(World::create({.target = TargetChoice::kHost,
                              .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = weak}}));
      EXPECT_EQ(compare(world->rank(0), {.query_lens = {150, 20}, .causal = true, .num_blocks = 2}), "")
          << "seed " << seed << (weak ? ", weak" : "");
      EXPECT_EQ(compare(world->rank(0), {.query_lens = {1}, .key_lens = {700}, .num_blocks = 2}), "")
          << "decoding, seed " << seed << (weak ? ", weak" : "");
    }
}

// Other head dimensions have other numbers of stages and consumers.
TEST(AttentionSeeds, EveryHeadDimension) {
  for (const int head_dim : {64, 128, 256})
    for (const uint64_t seed : sweep<uint64_t>({2, 1})) {
      const auto world =
          must(World::create({.target = TargetChoice::kHost,
                              .host = {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true}}));
      EXPECT_EQ(compare(world->rank(0), {.query_lens = {150, 20},
                                         .num_heads = 1,
                                         .head_dim = head_dim,
                                         .causal = seed == 1,
                                         .num_blocks = 1}),
                "")
          << "head_dim " << head_dim << ", seed " << seed;
      EXPECT_EQ(
          compare(
              world->rank(0),
              {.query_lens = {1}, .key_lens = {300}, .num_heads = 1, .head_dim = head_dim, .num_blocks = 2}),
          "")
          << "decoding, head_dim " << head_dim << ", seed " << seed;
    }
}

}  // namespace
}  // namespace switchyard
