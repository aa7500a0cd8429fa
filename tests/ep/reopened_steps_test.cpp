// Steps without a combine, combines without a dispatch, and what a dispatch tells of its sources.
#include <chrono>
#include <thread>

#include "many_steps.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

using Variant = std::tuple<TargetChoice, RowLayout>;

class ReopenedStepsTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static ManySteps make(int num_steps, HostDeviceOptions host = {}) {
    const auto [target, layout] = GetParam();
    return ManySteps(layout, target, num_steps, host);
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, ReopenedStepsTest,
                         ::testing::Combine(all_targets(),
                                            ::testing::Values(RowLayout::kRagged, RowLayout::kMasked,
                                                              RowLayout::kPerRank)),
                         [](const auto& info) {
                           const RowLayout layout = std::get<1>(info.param);
                           return target_name(std::get<0>(info.param)) +
                                  (layout == RowLayout::kRagged   ? "Ragged"
                                   : layout == RowLayout::kMasked ? "Masked"
                                                                  : "PerRank");
                         });

// The local experts of each row of a rank, one step after the other.
std::vector<std::vector<int32_t>> choices_of(ManySteps& many, int rank) {
  std::vector<std::vector<int32_t>> choices;
  for (size_t i = 0; i < many.steps.size(); ++i) {
    const ManySteps::Memory& own = many.at(static_cast<int>(i), rank);
    const uint32_t num_rows = must(own.counts.download()).back();
    choices.push_back(must(own.row_experts.download(num_rows * size_t{ManySteps::kTopK})));
  }
  return choices;
}

// All but the last step are abandoned; nobody waits in between.
void run_abandoned(ManySteps& many) {
  const int num_steps = static_cast<int>(many.steps.size()), n_ranks = many.ep->n_ranks();
  for (int step = 0; step < num_steps; ++step) {
    for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(many.dispatch(step, rank).ok());
    for (int rank = 0; rank < n_ranks && step + 1 < num_steps; ++rank)
      ASSERT_TRUE(many.ep->abandon_step(rank).ok());
  }
  for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(many.combine_rows(num_steps - 1, rank).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  for (int rank = 0; rank < n_ranks; ++rank)
    EXPECT_EQ(must(many.at(num_steps - 1, rank).output.download()), many.expected(num_steps - 1, rank));
}

// The same with a combine in every step, which keeps each from the next anyway.
void run_combined(ManySteps& many) {
  for (int step = 0; step < static_cast<int>(many.steps.size()); ++step) {
    for (int rank = 0; rank < many.ep->n_ranks(); ++rank) ASSERT_TRUE(many.dispatch(step, rank).ok());
    for (int rank = 0; rank < many.ep->n_ranks(); ++rank) ASSERT_TRUE(many.combine_rows(step, rank).ok());
  }
  ASSERT_TRUE(many.ep->synchronize().ok());
}

TEST_P(ReopenedStepsTest, StepsWithoutACombineBackToBack) {
  ManySteps many = make(5);
  run_abandoned(many);
  if (!many.is_per_rank()) return;
  ManySteps whole = make(5);
  run_combined(whole);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(choices_of(many, rank), choices_of(whole, rank));
}

// Rank 0 has abandoned the first step, and chosen the ranks of the second, before rank 1 fetches what rank 0
// has kept of the first.
TEST(ReopenedSteps, ChoicesOfAnAbandonedStepStay) {
  ManySteps whole(RowLayout::kPerRank, TargetChoice::kHost, 2, {}, {.n_ranks = 2});
  run_combined(whole);
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 2, {}, {.n_ranks = 2});
  ASSERT_TRUE(many.ep->dispatch_async(1, many.input(0, 1)).ok());
  ASSERT_TRUE(many.dispatch(0, 0).ok());
  ASSERT_TRUE(many.ep->abandon_step(0).ok());
  ASSERT_TRUE(many.dispatch(1, 0).ok());
  // Rank 0 now waits for rank 1's second step, so nothing tells when it has chosen.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(many.ep->dispatch_wait(1, many.output(0, 1)).ok());
  ASSERT_TRUE(many.ep->abandon_step(1).ok());
  ASSERT_TRUE(many.dispatch(1, 1).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(choices_of(many, rank), choices_of(whole, rank));
}

TEST_P(ReopenedStepsTest, CombinesOfOneDispatchBackToBack) {
  ManySteps many = make(1);
  constexpr int kNumCombines = 4;
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(many.dispatch(0, rank).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  std::vector<std::vector<Buffer<bf16>>> rows(kNumCombines), outputs(kNumCombines);
  for (int i = 0; i < kNumCombines; ++i)
    for (int rank = 0; rank < 3; ++rank) {
      rows[static_cast<size_t>(i)].push_back(many.scaled_rows(rank, static_cast<float>(1 << i)));
      outputs[static_cast<size_t>(i)].push_back(
          must(many.world->rank(rank).allocate<bf16>(size_t{ManySteps::kNumTokens} * ManySteps::kHidden)));
    }
  for (int i = 0; i < kNumCombines; ++i)
    for (const char* part : {"reopen", "combine"})
      for (int rank = 0; rank < 3; ++rank) {
        const Buffer<bf16>& given = rows[static_cast<size_t>(i)][static_cast<size_t>(rank)];
        if (part[0] == 'r') {
          if (i > 0 && !many.ep->reopen_step(rank).ok()) FAIL() << "reopen_step of rank " << rank;
          continue;
        }
        const ManySteps::Memory& own = many.at(0, rank);
        const Status stored = many.ep->store_expert_rows(rank, {.rows = given.data(),
                                                                .num_rows = given.size() / ManySteps::kHidden,
                                                                .row_offsets = own.offsets.data(),
                                                                .row_counts = own.counts.data()});
        ASSERT_TRUE(stored.ok()) << stored.to_string();
        ASSERT_TRUE(many.combine(0, rank, outputs[static_cast<size_t>(i)][static_cast<size_t>(rank)]).ok());
      }
  ASSERT_TRUE(many.ep->synchronize().ok());
  for (int i = 0; i < kNumCombines; ++i)
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(must(outputs[static_cast<size_t>(i)][static_cast<size_t>(rank)].download()),
                many.expected(0, rank, static_cast<float>(1 << i)))
          << "combine " << i << " of rank " << rank;
}

TEST_P(ReopenedStepsTest, SourceRangesAndTotals) {
  ManySteps many = make(1);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(many.dispatch(0, rank).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  for (int rank = 0; rank < 3; ++rank) {
    const ManySteps::Memory& own = many.at(0, rank);
    const std::vector<uint32_t> first_rows = must(many.ep->source_row_offsets(rank));
    const std::vector<uint32_t> offsets = must(own.offsets.download()), counts = must(own.counts.download());
    const std::vector<uint64_t> ranges = must(own.ranges.download());
    const std::vector<int32_t> totals = must(own.totals.download());
    for (size_t group = 0; group < counts.size(); ++group) {
      uint32_t num_rows = 0;
      for (size_t source = 0; source < 3; ++source) {
        const uint64_t range = ranges[group * 3 + source];
        EXPECT_EQ(range >> 32, first_rows[group * 3 + source] - offsets[group]);
        num_rows += static_cast<uint32_t>(range);
      }
      EXPECT_EQ(num_rows, counts[group]);
      EXPECT_EQ(totals[group], 1000 + static_cast<int32_t>(counts[group]));
    }
  }
}

// Per rank, what arrives is also counted by local expert.
TEST_P(ReopenedStepsTest, ExpertTotals) {
  ManySteps many = make(2);
  if (!many.is_per_rank()) return;
  run_combined(many);
  const std::vector<std::vector<int32_t>> choices[] = {choices_of(many, 0), choices_of(many, 1),
                                                       choices_of(many, 2)};
  for (int step = 0; step < 2; ++step)
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<int32_t> expected(1 + static_cast<size_t>(many.ep->n_local_experts()), 50);
      expected[0] += static_cast<int32_t>(must(many.at(step, rank).counts.download()).back());
      for (const int32_t expert : choices[rank][static_cast<size_t>(step)])
        if (expert >= 0) ++expected[1 + static_cast<size_t>(expert)];
      EXPECT_EQ(must(many.at(step, rank).expert_totals.download()), expected);
    }
}

std::vector<bf16> rows_of_set(ManySteps& many, int rank, int set, uint32_t num_rows) {
  const uint64_t first_row = static_cast<uint64_t>(set) * many.ep->rows_per_set();
  bf16* rows = must(many.ep->row_buffers(rank)).rows + first_row * ManySteps::kHidden;
  return must(many.world->rank(rank).view(rows, num_rows * size_t{ManySteps::kHidden}).download());
}

// Three steps lie side by side, in the sets that each rank chose: the rows of all of them stay, a combine
// finds those of the last, and what a step tells of its rows is as with one set.
void run_in_sets(ManySteps& many, ManySteps& whole) {
  const int n_ranks = many.ep->n_ranks();
  std::vector<std::vector<std::vector<bf16>>> rows;  // [step][rank], when each step has ended
  for (int step = 0; step < 3; ++step) {
    for (ManySteps* steps : {&many, &whole}) {
      for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(steps->dispatch(step, rank).ok());
      ASSERT_TRUE(steps->ep->synchronize().ok());
    }
    rows.emplace_back();
    for (int rank = 0; rank < n_ranks; ++rank) {
      const uint32_t num_rows = must(whole.at(step, rank).counts.download()).front();
      const auto first_row =
          static_cast<uint32_t>(many.row_set(step, rank) * static_cast<int>(many.ep->rows_per_set()));
      EXPECT_EQ(must(many.at(step, rank).offsets.download()),
                (std::vector<uint32_t>{0, first_row, first_row + num_rows}));
      EXPECT_EQ(must(many.at(step, rank).counts.download()), (std::vector<uint32_t>{first_row, num_rows}));
      EXPECT_EQ(must(many.at(step, rank).ranges.download(static_cast<size_t>(n_ranks))),
                must(whole.at(step, rank).ranges.download(static_cast<size_t>(n_ranks))));
      rows.back().push_back(rows_of_set(whole, rank, 0, num_rows));
    }
    for (int rank = 0; rank < n_ranks && step < 2; ++rank)
      for (ManySteps* steps : {&many, &whole}) ASSERT_TRUE(steps->ep->abandon_step(rank).ok());
  }
  for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(many.combine_rows(2, rank).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  for (int rank = 0; rank < n_ranks; ++rank) {
    EXPECT_EQ(must(many.at(2, rank).output.download()), many.expected(2, rank));
    EXPECT_EQ(choices_of(many, rank), choices_of(whole, rank));
    for (int step = 0; step < 3; ++step) {
      const std::vector<bf16>& expected = rows[static_cast<size_t>(step)][static_cast<size_t>(rank)];
      const auto num_rows = static_cast<uint32_t>(expected.size() / ManySteps::kHidden);
      EXPECT_EQ(rows_of_set(many, rank, many.row_set(step, rank), num_rows), expected)
          << "step " << step << " of rank " << rank;
    }
  }
}

TEST_P(ReopenedStepsTest, SetsOfRows) {
  const auto [target, layout] = GetParam();
  if (layout != RowLayout::kPerRank) return;  // the others are refused
  for (const int n_ranks : {1, 2, 3}) {
    ManySteps many(layout, target, 3, {}, {.n_ranks = n_ranks, .row_sets = 3}),
        whole(layout, target, 3, {}, {.n_ranks = n_ranks});
    run_in_sets(many, whole);
    // Rows of the caller's come to the set of the step.
    std::vector<Buffer<bf16>> given;
    for (int rank = 0; rank < n_ranks; ++rank) given.push_back(whole.scaled_rows(rank, 2));
    for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(many.ep->reopen_step(rank).ok());
    for (int rank = 0; rank < n_ranks; ++rank) {
      const ManySteps::Memory& own = many.at(2, rank);
      const Buffer<bf16>& rows = given[static_cast<size_t>(rank)];
      const Status stored = many.ep->store_expert_rows(rank, {.rows = rows.data(),
                                                              .num_rows = rows.size() / ManySteps::kHidden,
                                                              .row_offsets = own.offsets.data(),
                                                              .row_counts = own.counts.data()});
      ASSERT_TRUE(stored.ok()) << stored.to_string();
      ASSERT_TRUE(many.combine(2, rank, many.at(2, rank).output).ok());
    }
    ASSERT_TRUE(many.ep->synchronize().ok());
    for (int rank = 0; rank < n_ranks; ++rank)
      EXPECT_EQ(must(many.at(2, rank).output.download()), many.expected(2, rank, 2));
  }
}

// The formats, and how many tokens a rank may have: senders store the scales of few where rows of them
// interleave, and owners fetch those of many. 0: as many as there are.
std::vector<std::pair<TokenFormatKind, int>> formats_by_most_tokens() {
  std::vector<std::pair<TokenFormatKind, int>> formats;
  for (const TokenFormatKind format : kTokenFormatKinds) {
    if (info_of(format).encodes_by_expert) continue;  // refused per rank
    formats.emplace_back(format, 0);
    if (info_of(format).interleaves_rows()) formats.emplace_back(format, kMaxTokensOfFetchedScales);
  }
  return formats;
}

// The codes and scales of a set's rows.
std::vector<std::byte> encoded_rows_of_set(ManySteps& many, int rank, int set, uint32_t num_rows) {
  const TokenFormatInfo format = info_of(many.ep->config().dispatch_format);
  const RowBuffers own = must(many.ep->row_buffers(rank));
  const uint64_t first_row = static_cast<uint64_t>(set) * many.ep->rows_per_set();
  const Rank& owner = many.world->rank(rank);
  std::vector<std::byte> bytes;
  const auto append = [&](std::byte* first, uint64_t size) {
    const std::vector<std::byte> part = must(owner.view(first, size).download());
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  const uint32_t row_bytes = format.row_bytes(ManySteps::kHidden);
  append(own.encoded_rows + first_row * row_bytes, uint64_t{num_rows} * row_bytes);
  const ScaleTensor scales = format.scale_tensor(own.max_rows, ManySteps::kHidden);
  const auto element_bytes = static_cast<uint64_t>(bytes_of(scales.element));
  switch (format.placement) {
    case ScalePlacement::kNone:
      break;
    case ScalePlacement::kByRow:
      append(own.scales + first_row * scales.shape[1] * element_bytes,
             num_rows * scales.shape[1] * element_bytes);
      break;
    case ScalePlacement::kTiled: {  // nobody writes those of rows that are not there
      const TiledScaleLayout layout{format.num_scales(ManySteps::kHidden)};
      const std::vector<std::byte> tiles =
          must(owner.view(own.scales + layout.bytes(first_row).value(), layout.bytes(num_rows).value())
                   .download());
      for (uint32_t row = 0; row < num_rows; ++row)
        for (int column = 0; column < layout.num_columns; ++column)
          bytes.push_back(tiles[layout.offset(row, column)]);
      break;
    }
    case ScalePlacement::kTransposed:
    case ScalePlacement::kPacked:
      for (uint64_t i = 0; i < scales.shape[0]; ++i)
        append(own.scales + (i * scales.shape[1] + first_row) * element_bytes, num_rows * element_bytes);
  }
  return bytes;
}

// Steps lie side by side in every format: the codes and scales of earlier ones stay, and are those of a step
// that is alone.
TEST_P(ReopenedStepsTest, SetsOfRowsInEveryFormat) {
  const auto [target, layout] = GetParam();
  if (layout != RowLayout::kPerRank) return;  // the others are refused
  for (const auto& [format, max_tokens] : formats_by_most_tokens()) {
    SCOPED_TRACE(std::string(to_string(format)) + ", at most " + std::to_string(max_tokens) + " tokens");
    ManySteps many(layout, target, 3, {},
                   {.n_ranks = 2, .row_sets = 3, .format = format, .max_tokens = max_tokens});
    for (int step = 0; step < 3; ++step) {
      for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(many.dispatch(step, rank).ok());
      for (int rank = 0; rank < 2 && step < 2; ++rank) ASSERT_TRUE(many.ep->abandon_step(rank).ok());
    }
    ASSERT_TRUE(many.ep->synchronize().ok());
    for (int step = 0; step < 3; ++step) {
      ManySteps whole(layout, target, 3, {}, {.n_ranks = 2, .format = format, .max_tokens = max_tokens});
      for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(whole.dispatch(step, rank).ok());
      ASSERT_TRUE(whole.ep->synchronize().ok());
      for (int rank = 0; rank < 2; ++rank) {
        const uint32_t num_rows = must(whole.at(step, rank).counts.download()).front();
        EXPECT_EQ(encoded_rows_of_set(many, rank, many.row_set(step, rank), num_rows),
                  encoded_rows_of_set(whole, rank, 0, num_rows))
            << "step " << step << " of rank " << rank;
      }
    }
  }
}

// Outputs lie behind rows that take fewer bytes than they do: peers find those of the last set all the same.
TEST_P(ReopenedStepsTest, CombineBehindTheLastSetInEveryFormat) {
  const auto [target, layout] = GetParam();
  if (layout != RowLayout::kPerRank) return;  // the others are refused
  constexpr int kRanks = 2, kTokens = 16, kWide = 2048;
  constexpr size_t kSize = size_t{kTokens} * kWide;
  for (const auto& [format, max_tokens] : formats_by_most_tokens()) {
    SCOPED_TRACE(std::string(to_string(format)) + ", at most " + std::to_string(max_tokens) + " tokens");
    const auto world = must(World::create({.target = target, .n_ranks = kRanks}));
    const auto ep = must(ExpertParallel::create(*world, {.n_experts = 2,
                                                         .top_k = 2,
                                                         .hidden = kWide,
                                                         .max_tokens_per_rank = std::max(kTokens, max_tokens),
                                                         .n_sms = 2,
                                                         .num_threads = 64,
                                                         .protocol = Protocol::kDirect,
                                                         .row_layout = layout,
                                                         .row_sets = 8,
                                                         .dispatch_format = format}));
    std::vector<Buffer<bf16>> tokens, rows, outputs;
    std::vector<Buffer<int32_t>> ids, expert_ids;
    std::vector<Buffer<float>> weights;
    std::vector<Buffer<uint32_t>> offsets, counts;
    for (int rank = 0; rank < kRanks; ++rank) {
      const Rank& here = world->rank(rank);
      tokens.push_back(must(here.upload(std::vector<bf16>(kSize, to_bf16(1)))));
      // Every token goes to both ranks, and each makes its number and 1 of it.
      rows.push_back(
          must(here.upload(std::vector<bf16>(kRanks * kSize, to_bf16(static_cast<float>(rank + 1))))));
      outputs.push_back(must(here.allocate<bf16>(kSize)));
      std::vector<int32_t> both(2 * kTokens);
      for (size_t i = 0; i < both.size(); ++i) both[i] = static_cast<int32_t>(i % 2);
      ids.push_back(must(here.upload(both)));
      expert_ids.push_back(must(here.allocate<int32_t>(2)));
      weights.push_back(must(here.upload(std::vector<float>(2 * kTokens, 1))));
      offsets.push_back(must(here.allocate<uint32_t>(3)));
      counts.push_back(must(here.allocate<uint32_t>(2)));
    }
    const auto of = [](auto& buffers, int rank) { return buffers[static_cast<size_t>(rank)].data(); };
    for (int rank = 0; rank < kRanks; ++rank) {
      DispatchInput input{of(tokens, rank), of(ids, rank), kTokens, of(weights, rank)};
      input.row_set = 7 - rank;
      const Status status = ep->dispatch(rank, input,
                                         {.row_offsets = of(offsets, rank),
                                          .expert_ids = of(expert_ids, rank),
                                          .row_counts = of(counts, rank)});
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const Status stored = ep->store_expert_rows(rank, {.rows = of(rows, rank),
                                                         .num_rows = kRanks * kTokens,
                                                         .row_offsets = of(offsets, rank),
                                                         .row_counts = of(counts, rank)});
      ASSERT_TRUE(stored.ok()) << stored.to_string();
      ASSERT_TRUE(
          ep->combine(
                rank, {},
                {of(ids, rank), of(weights, rank), kTokens, {CombineReduction::kWeighted, of(outputs, rank)}})
              .ok());
    }
    ASSERT_TRUE(ep->synchronize().ok());
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(must(outputs[static_cast<size_t>(rank)].download()), std::vector<bf16>(kSize, to_bf16(3)));
  }
}

// A rank that has synchronized a step that was called off, and one that has not and abandons it, agree on
// what each keeps of its choices.
TEST_P(ReopenedStepsTest, RanksMayEndAStepThatWasCalledOffInDifferentWays) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  ManySteps many = make(2);
  if (!many.is_per_rank()) return;
  ASSERT_TRUE(many.ep->call_off_step(0).ok());
  for (const int rank : {1, 2}) ASSERT_TRUE(many.dispatch(0, rank).ok());
  EXPECT_EQ(many.ep->synchronize(0).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(many.ep->abandon_step(1).ok());
  EXPECT_EQ(many.ep->synchronize(2).code(), StatusCode::kResourceExhausted);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(many.dispatch(1, rank).ok());
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(many.combine_rows(1, rank).ok());
  (void)many.ep->synchronize(1);  // tells of the step that was called off
  ASSERT_TRUE(many.ep->synchronize().ok());
  ManySteps whole = make(2);
  run_combined(whole);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(choices_of(many, rank)[1], choices_of(whole, rank)[1]);
}

TEST(ReopenedSteps, SetsOfRowsInWeakMemory) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 3, weak_memory(seed),
                   {.n_ranks = 2, .row_sets = 2});
    run_abandoned(many);
  }
}

TEST(ReopenedSteps, ADispatchThatCannotBeEnqueuedLeavesTheSet) {
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, {}, {.n_ranks = 1, .row_sets = 2});
  const auto elsewhere = must(World::create({.target = TargetChoice::kHost, .n_ranks = 1}));
  const Stream stream = must(elsewhere->rank(0).create_stream());
  ASSERT_TRUE(many.dispatch(0, 0).ok());
  ASSERT_TRUE(many.ep->abandon_step(0).ok());
  DispatchInput input = many.input(0, 0);
  input.row_set = 1;
  EXPECT_FALSE(many.ep->dispatch(0, input, many.output(0, 0), stream).ok());
  ASSERT_TRUE(many.ep->reopen_step(0).ok());
  ASSERT_TRUE(many.combine_rows(0, 0).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  EXPECT_EQ(must(many.at(0, 0).output.download()), many.expected(0, 0));
}

TEST(ReopenedSteps, SetsThatThereAreNotAreRefused) {
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, {}, {.n_ranks = 1, .row_sets = 2});
  DispatchInput input = many.input(0, 0);
  for (const int row_set : {-1, 2}) {
    input.row_set = row_set;
    EXPECT_NE(many.ep->dispatch(0, input, many.output(0, 0)).message().find("it must be 0..1 (row_sets)"),
              std::string::npos);
  }
  ExpertParallelConfig config = many.ep->config();
  const auto refusal = [&] { return ExpertParallel::create(*many.world, config).status().message(); };
  config.row_sets = 9;
  EXPECT_NE(refusal().find("row_sets is 9; it must be 1..8"), std::string::npos);
  config.row_sets = 2;
  config.shared_expert = SharedExpert::kFused;
  EXPECT_NE(refusal().find("where a shared expert is fused"), std::string::npos);
  config.shared_expert = SharedExpert::kNone;
  config.row_layout = RowLayout::kRagged;
  EXPECT_NE(refusal().find("where row_layout is ragged"), std::string::npos);
}

// What keeps an abandoned step from the next is in the kernels, whatever the order in which they run.
TEST(ReopenedSteps, WeakMemory) {
  ManySteps whole(RowLayout::kPerRank, TargetChoice::kHost, 3, {}, {.n_ranks = 2});
  run_combined(whole);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const RowLayout layout = seed % 2 == 0 ? RowLayout::kPerRank : RowLayout::kMasked;
    ManySteps many(layout, TargetChoice::kHost, 3, weak_memory(seed), {.n_ranks = 2});
    run_abandoned(many);
    for (int rank = 0; rank < 2 && many.is_per_rank(); ++rank)
      EXPECT_EQ(choices_of(many, rank), choices_of(whole, rank)) << "seed " << seed;
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(many.ep->reopen_step(rank).ok());
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(many.combine_rows(2, rank).ok());
    ASSERT_TRUE(many.ep->synchronize().ok());
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(must(many.at(2, rank).output.download()), many.expected(2, rank)) << "seed " << seed;
  }
}

// What a rank knows of its rows is by the old seats. A step by the new ones can be opened again.
TEST_P(ReopenedStepsTest, NotBehindAnotherPlacement) {
  const auto [target, layout] = GetParam();
  auto world = must(World::create({.target = target, .n_ranks = 2}));
  const auto ep = must(ExpertParallel::create(*world, {.n_experts = 4,
                                                       .top_k = 1,
                                                       .hidden = 64,
                                                       .max_tokens_per_rank = 4,
                                                       .n_sms = 2,
                                                       .num_threads = 64,
                                                       .protocol = Protocol::kDirect,
                                                       .row_layout = layout,
                                                       .placement = must(ExpertPlacement::even(4, 2))}));
  std::vector<Buffer<uint32_t>> words;
  std::vector<Buffer<int32_t>> row_experts;
  for (int rank = 0; rank < 2; ++rank) {
    words.push_back(must(world->rank(rank).allocate<uint32_t>(16)));
    row_experts.push_back(must(world->rank(rank).allocate<int32_t>(64)));
  }
  const auto run_step = [&] {
    for (int rank = 0; rank < 2; ++rank) {
      uint32_t* own = words[static_cast<size_t>(rank)].data();
      const Status status = ep->dispatch(
          rank, {},
          {.row_offsets = own,
           .expert_ids = reinterpret_cast<int32_t*>(own + 8),
           .row_experts =
               layout == RowLayout::kPerRank ? row_experts[static_cast<size_t>(rank)].data() : nullptr});
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ep->combine(rank, {}, {}).ok());
  };
  run_step();
  ASSERT_TRUE(ep->set_placement(must(ExpertPlacement::from_lists(4, {{3, 0}, {1, 2}}))).ok());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ep->reopen_step(rank).message(),
              "reopen_step: rank " + std::to_string(rank) +
                  " has dispatched nothing since create(), reset() or set_placement()");
  run_step();
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ep->reopen_step(rank).ok());
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ep->combine(rank, {}, {}).ok());
  EXPECT_TRUE(ep->synchronize().ok());
}

TEST(ReopenedSteps, WhatIsOutOfPlaceIsRefused) {
  ManySteps many(RowLayout::kMasked, TargetChoice::kHost, 1, {}, {.n_ranks = 1});
  EXPECT_NE(many.ep->abandon_step(0).message().find("abandon_step on rank 0 after a finished step"),
            std::string::npos);
  EXPECT_NE(many.ep->reopen_step(0).message().find("has dispatched nothing"), std::string::npos);
  EXPECT_NE(many.ep->store_expert_rows(0, {}).message().find("store_expert_rows"), std::string::npos);
  ASSERT_TRUE(many.dispatch(0, 0).ok());
  EXPECT_NE(many.ep->reopen_step(0).message().find("next must come combine"), std::string::npos);
  EXPECT_NE(many.ep->store_expert_rows(0, {}).message().find("rows is null"), std::string::npos);
  ASSERT_TRUE(many.ep->abandon_step(0).ok());
  ASSERT_TRUE(many.ep->reset().ok());
  EXPECT_NE(many.ep->reopen_step(0).message().find("has dispatched nothing"), std::string::npos);
  const auto slotted = must(ExpertParallel::create(
      *many.world,
      {.n_experts = 4, .top_k = 2, .hidden = 64, .max_tokens_per_rank = 4, .protocol = Protocol::kSlotted}));
  EXPECT_NE(slotted->reopen_step(0).message().find("the protocol is slotted"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
