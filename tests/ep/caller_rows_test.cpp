// Expert rows in the caller's memory that peers read where they are.
#include "awaited_readers.hpp"

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

// Filling waits for the rank's stream alone.
TEST_P(CallerRowsTest, ACombineThatAwaitsReadersGivesThemBack) {
  const auto [target, layout] = GetParam();
  SWITCHYARD_SKIP_IF_ABSENT(target);
  for (int i = 0; i < 8; ++i) {
    ManySteps many(layout, target, 1);
    ASSERT_EQ(run_awaited_readers(many, [](int, Buffer<bf16>& rows) { return rows.fill_bytes(0xff); }), "");
  }
}

// What lies behind them where peers read is of an earlier step.
TEST_P(CallerRowsTest, FewerThanTheStepHasAreAFault) {
  const auto [target, layout] = GetParam();
  SWITCHYARD_SKIP_IF_ABSENT(target);
  SWITCHYARD_SKIP_IF_UNCHECKED();
  ManySteps many(layout, target, 1);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(many.dispatch(0, rank).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  std::vector<Buffer<bf16>> rows;
  for (int rank = 0; rank < 3; ++rank) rows.push_back(many.scaled_rows(rank, 2));
  uint64_t end_of_one = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const ManySteps::Memory& own = many.at(0, rank);
    const std::vector<uint32_t> offsets = must(own.offsets.download()), counts = must(own.counts.download());
    uint64_t end = 0;
    for (size_t group = 0; group < counts.size(); ++group)
      if (counts[group] > 0) end = offsets[group] + counts[group];
    if (rank == 1) end_of_one = end--;
    const Status stored = many.ep->store_expert_rows(rank, {.rows = rows[static_cast<size_t>(rank)].data(),
                                                            .num_rows = end,
                                                            .row_offsets = own.offsets.data(),
                                                            .row_counts = own.counts.data()});
    ASSERT_TRUE(stored.ok()) << stored.to_string();
    ASSERT_TRUE(many.combine(0, rank, many.at(0, rank).output).ok());
  }
  const Status status = many.ep->synchronize();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("rows of rank 1 end at row " + std::to_string(end_of_one - 1) +
                                  ", and those of its step at " + std::to_string(end_of_one)),
            std::string::npos)
      << status.message();
  const std::optional<FaultRecord> fault = many.ep->fault(1);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, FaultKind::kNoExpertRows);
  EXPECT_FALSE(many.ep->fault(0).has_value());
  ASSERT_TRUE(many.ep->reset().ok());
  run_lent(many);
}

// Those behind them are another group's.
TEST(CallerRows, AGroupWithFewerThanTheStepHasIsAFault) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  ManySteps many(RowLayout::kMasked, TargetChoice::kHost, 1, {}, {.n_ranks = 1});
  ASSERT_TRUE(many.dispatch(0, 0).ok());
  ASSERT_TRUE(many.ep->synchronize().ok());
  const ManySteps::Memory& own = many.at(0, 0);
  const std::vector<uint32_t> counts = must(own.counts.download());
  ASSERT_GT(counts[0], 1u);
  Buffer<bf16> rows = many.scaled_rows(0, 2);
  const Status stored = many.ep->store_expert_rows(0, {.rows = rows.data(),
                                                       .num_rows = rows.size() / ManySteps::kHidden,
                                                       .rows_per_group = counts[0] - 1,
                                                       .row_offsets = own.offsets.data(),
                                                       .row_counts = own.counts.data()});
  ASSERT_TRUE(stored.ok()) << stored.to_string();
  const std::string message = many.ep->synchronize().message();
  EXPECT_NE(message.find("rows of rank 0 end at row " + std::to_string(counts[0] - 1)), std::string::npos)
      << message;
}

TEST(CallerRows, PeersReadThoseOfASet) {
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, {}, {.row_sets = 3});
  run_lent(many);
}

TEST(CallerRows, WeakMemory) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, weak_memory(seed), {.n_ranks = 2});
    run_lent(many);
  }
}

// Rows that a dispatch has brought are combined where they are, whichever set they lie in.
TEST(CallerRows, ThoseInTheRowBuffersNeedNoCopy) {
  ManySteps many(RowLayout::kPerRank, TargetChoice::kHost, 1, {}, {.row_sets = 3});
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
  ManySteps many(RowLayout::kRagged, TargetChoice::kHost, 1, {}, {.n_ranks = 1});
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
  EXPECT_NE(many.ep->combine_async(0, {.awaits_readers = true}).message().find("call combine instead"),
            std::string::npos);
  const auto slotted = must(ExpertParallel::create(
      *many.world,
      {.n_experts = 2, .top_k = 1, .hidden = 64, .max_tokens_per_rank = 4, .protocol = Protocol::kSlotted}));
  EXPECT_FALSE(slotted->offer_expert_rows(0, rows.data()).ok());
}

// What a step of one rank says to a combine that awaits its readers.
std::string awaited_by(const ExpertParallelConfig& config) {
  const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto ep = must(ExpertParallel::create(*world, config));
  const Rank& rank = world->rank(0);
  const auto rows = must(ep->row_buffers(0));
  Buffer<uint32_t> offsets = must(rank.allocate<uint32_t>(3));
  Buffer<int32_t> expert_ids = must(rank.allocate<int32_t>(2));
  const Status dispatched = ep->dispatch(
      0, {.num_tokens = 0}, {rows.rows, rows.src_info, rows.max_rows, offsets.data(), expert_ids.data()});
  EXPECT_TRUE(dispatched.ok()) << dispatched.to_string();
  const Status status =
      ep->combine(0, {.expert_rows = rows.expert_outputs, .src_info = rows.src_info, .awaits_readers = true},
                  {.num_tokens = 0});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_TRUE(ep->reset().ok());
  return status.message();
}

TEST(CallerRows, ReadersAreAwaitedWhereRowsArePulledAndCombineIsBehindTheExperts) {
  ExpertParallelConfig config{.n_experts = 4,
                              .top_k = 1,
                              .hidden = 64,
                              .max_tokens_per_rank = 4,
                              .n_sms = 1,
                              .timeout_ns = 100'000'000,
                              .protocol = Protocol::kSlotted};
  EXPECT_NE(awaited_by(config).find("the protocol is slotted"), std::string::npos);
  config.protocol = Protocol::kDirect;
  config.p2p_world_size = 1;
  EXPECT_NE(awaited_by(config).find("direct with a wire"), std::string::npos);
  config.p2p_world_size = 0;
  config.combine_start = CombineStart::kWithExperts;
  EXPECT_NE(awaited_by(config).find("combine_start is with-experts"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
