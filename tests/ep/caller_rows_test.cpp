// Expert rows in the caller's memory that peers read where they are.
#include "many_steps.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

// Ranks whose number is odd lend their rows, and the others have them copied.
void run_lent(ManySteps& many) {
  constexpr int kNumCombines = 4;
  const int n_ranks = many.ep->n_ranks();
  for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(many.dispatch(0, rank).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  std::vector<Buffer<bf16>> rows;
  std::vector<std::vector<Buffer<bf16>>> outputs(kNumCombines);
  for (int rank = 0; rank < n_ranks; ++rank) {
    const size_t size = size_t{ManySteps::kNumTokens} * ManySteps::kHidden;
    rows.push_back(many.scaled_rows(rank, 2));
    for (auto& of_rank : outputs) of_rank.push_back(must(many.world->rank(rank).allocate<bf16>(size)));
  }
  for (int i = 0; i < kNumCombines; ++i) {
    for (int rank = 0; rank < n_ranks; ++rank) {
      const bf16* given =
          rows[static_cast<size_t>(rank)].data() +
          static_cast<uint64_t>(many.row_set(0, rank)) * many.ep->rows_per_set() * ManySteps::kHidden;
      if (rank % 2 == 1) {
        EXPECT_TRUE(must(many.ep->offer_expert_rows(rank, given)));
      } else {
        const ManySteps::Memory& own = many.at(0, rank);
        ASSERT_TRUE(many.ep
                        ->store_expert_rows(rank, {.rows = given,
                                                   .num_rows = many.ep->rows_per_set(),
                                                   .row_offsets = own.offsets.data(),
                                                   .row_counts = own.counts.data()})
                        .ok());
        given = nullptr;
      }
      Buffer<bf16>& output = outputs[static_cast<size_t>(i)][static_cast<size_t>(rank)];
      ASSERT_TRUE(many.combine(0, rank, output, given).ok());
    }
    // Behind it the rows are the caller's again.
    for (int rank = 0; rank < n_ranks; ++rank) ASSERT_TRUE(many.ep->reopen_step(rank).ok());
    ASSERT_TRUE(many.ep->synchronize().ok());
    for (int rank = 0; rank < n_ranks; ++rank) {
      std::vector<bf16> next = must(rows[static_cast<size_t>(rank)].download());
      for (bf16& value : next) value = to_bf16(to_float(value) * 2);
      ASSERT_TRUE(rows[static_cast<size_t>(rank)].upload(next).ok());
    }
  }
  for (int i = 0; i < kNumCombines; ++i)
    for (int rank = 0; rank < n_ranks; ++rank)
      EXPECT_EQ(must(outputs[static_cast<size_t>(i)][static_cast<size_t>(rank)].download()),
                many.expected(0, rank, static_cast<float>(2 << i)))
          << "combine " << i << " of rank " << rank;
}

class CallerRowsTest : public ::testing::TestWithParam<std::tuple<TargetChoice, RowLayout>> {};

INSTANTIATE_TEST_SUITE_P(Targets, CallerRowsTest,
                         ::testing::Combine(all_targets(),
                                            ::testing::Values(RowLayout::kRagged, RowLayout::kMasked,
                                                              RowLayout::kPerRank)),
                         [](const auto& info) {
                           return target_name(std::get<0>(info.param)) +
                                  std::to_string(static_cast<int>(std::get<1>(info.param)));
                         });

TEST_P(CallerRowsTest, PeersReadThem) {
  const auto [target, layout] = GetParam();
  SWITCHYARD_SKIP_IF_ABSENT(target);
  ManySteps many(layout, target, 1);
  run_lent(many);
}

TEST(CallerRows, PeersReadThoseOfASet) {
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, {}, 3, 3);
  run_lent(many);
}

TEST(CallerRows, WeakMemory) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, weak_memory(seed), 2);
    run_lent(many);
  }
}

// Rows that a dispatch has brought are combined where they are, whichever set they lie in.
TEST(CallerRows, ThoseInTheRowBuffersNeedNoCopy) {
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, {}, 3, 3);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(many.dispatch(0, rank).ok());
  for (int rank = 0; rank < 3; ++rank) {
    const uint64_t first_row = static_cast<uint64_t>(many.row_set(0, rank)) * many.ep->rows_per_set();
    const bf16* rows = must(many.ep->row_buffers(rank)).rows + first_row * ManySteps::kHidden;
    EXPECT_TRUE(must(many.ep->offer_expert_rows(rank, rows)));
    ASSERT_TRUE(many.combine(0, rank, many.at(0, rank).output, rows).ok());
  }
  ASSERT_TRUE(many.ep->synchronize().ok());
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(must(many.at(0, rank).output.download()), many.expected(0, rank));
}

TEST(CallerRows, ThoseThatWereNotOfferedAreRefused) {
  ManySteps many(RowLayout::kRagged, TargetChoice::kHost, 1, {}, 1);
  Buffer<bf16> rows = must(many.world->rank(0).allocate<bf16>(1024));
  EXPECT_NE(many.ep->offer_expert_rows(0, rows.data()).status().message().find("next must come dispatch"),
            std::string::npos);
  ASSERT_TRUE(many.dispatch(0, 0).ok());
  Buffer<bf16>& output = many.at(0, 0).output;
  EXPECT_NE(many.combine(0, 0, output, rows.data()).message().find("or have been offered"),
            std::string::npos);
  EXPECT_NE(many.ep->offer_expert_rows(0, nullptr).status().message().find("rows is null"),
            std::string::npos);
  EXPECT_NE(many.ep->offer_expert_rows(0, rows.data() + 1).status().message().find("aligned"),
            std::string::npos);
  EXPECT_TRUE(must(many.ep->offer_expert_rows(0, rows.data())));
  EXPECT_FALSE(many.combine(0, 0, output, rows.data() + 64).ok());
  EXPECT_TRUE(many.combine(0, 0, output).ok());  // an offer need not be taken up
  ASSERT_TRUE(many.ep->reopen_step(0).ok());
  EXPECT_FALSE(many.combine(0, 0, output, rows.data()).ok());  // and holds for one step
  const auto slotted = must(ExpertParallel::create(
      *many.world,
      {.n_experts = 2, .top_k = 1, .hidden = 64, .max_tokens_per_rank = 4, .protocol = Protocol::kSlotted}));
  EXPECT_FALSE(slotted->offer_expert_rows(0, rows.data()).ok());
}

}  // namespace
}  // namespace switchyard
