// Steps of the direct protocol that all ranks skip, for want of room, and then open again.
#include "step_test.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

// Ranks with an expert each, which has room for four rows.
class CrowdedSteps {
 public:
  CrowdedSteps(TargetChoice target, RowLayout layout, HostDeviceOptions host = {}, int n_ranks = 2)
      : world_(must(World::create({.target = target, .n_ranks = n_ranks, .host = host}))),
        ep(must(
            ExpertParallel::create(*world_, {.n_experts = n_ranks,
                                             .top_k = 1,
                                             .hidden = 64,
                                             .max_tokens_per_rank = 4,
                                             .n_sms = 2,
                                             .num_threads = 64,
                                             .timeout_ns = 20'000'000'000,
                                             .protocol = Protocol::kDirect,
                                             .capacity_factor = layout == RowLayout::kRagged ? 1.0 : 0,
                                             .row_layout = layout,
                                             .max_rows_per_expert = layout == RowLayout::kMasked ? 4 : 0}))) {
    for (int rank = 0; rank < n_ranks; ++rank) {
      const Rank& here = world_->rank(rank);
      memory_.push_back({.tokens = must(here.upload(std::vector<bf16>(4 * 64, to_bf16(1)))),
                         .output = must(here.upload(std::vector<bf16>(4 * 64, to_bf16(7)))),
                         .ids = must(here.upload(std::vector<int32_t>(4, 1))),
                         .own_ids = must(here.upload(std::vector<int32_t>(4, rank))),
                         .expert_ids = must(here.allocate<int32_t>(1)),
                         .weights = must(here.upload(std::vector<float>(4, 1))),
                         .offsets = must(here.allocate<uint32_t>(2))});
    }
  }

  // To expert 1, which has room for those of one rank, or each to the expert of its rank.
  Status dispatch(int rank, bool is_crowded) {
    const Memory& own = memory_[static_cast<size_t>(rank)];
    const int32_t* ids = (is_crowded ? own.ids : own.own_ids).data();
    return ep->dispatch(rank, {own.tokens.data(), ids, 4, own.weights.data()},
                        {.row_offsets = own.offsets.data(), .expert_ids = own.expert_ids.data()});
  }
  Status combine(int rank, bool is_crowded = true, int num_tokens = 4) {
    const Memory& own = memory_[static_cast<size_t>(rank)];
    return ep->combine(rank, {.expert_rows = must(ep->row_buffers(rank)).rows},
                       {(is_crowded ? own.ids : own.own_ids).data(),
                        own.weights.data(),
                        num_tokens,
                        {CombineReduction::kWeighted, own.output.data()}});
  }
  // A step in which each token goes to the expert of its rank.
  void run_well() {
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(dispatch(rank, /*is_crowded=*/false).ok());
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(combine(rank, /*is_crowded=*/false).ok());
    EXPECT_TRUE(ep->synchronize().ok());
    EXPECT_TRUE(outputs_are(1));
  }
  void fill_outputs(float value) {
    for (Memory& of_rank : memory_)
      ASSERT_TRUE(of_rank.output.upload(std::vector<bf16>(4 * 64, to_bf16(value))).ok());
  }
  // Whether every element of both outputs is `value`.
  bool outputs_are(float value) const {
    for (const Memory& of_rank : memory_)
      if (must(of_rank.output.download()) != std::vector<bf16>(4 * 64, to_bf16(value))) return false;
    return true;
  }

 private:
  struct Memory {
    Buffer<bf16> tokens, output;
    Buffer<int32_t> ids, own_ids, expert_ids;
    Buffer<float> weights;
    Buffer<uint32_t> offsets;
  };
  std::unique_ptr<World> world_;
  std::vector<Memory> memory_;

 public:
  std::unique_ptr<ExpertParallel> ep;
};

// A step is skipped; the first `num_informed` ranks have synchronized and know it, the others have not. All
// of them open it again and combine: nobody waits for anybody, nothing is written, and all are told.
void reopen_a_skipped_step(CrowdedSteps& steps, int num_informed) {
  ExpertParallel& ep = *steps.ep;
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(steps.dispatch(rank, /*is_crowded=*/true).ok());
  for (int rank = 0; rank < 2; ++rank) {
    if (rank < num_informed) {
      EXPECT_EQ(ep.synchronize(rank).code(), StatusCode::kResourceExhausted);  // which ends the rank's step
    } else {
      ASSERT_TRUE(steps.combine(rank).ok());
    }
  }
  for (int i = 0; i < 2; ++i) {  // also a second time
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ep.reopen_step(rank).ok());
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(steps.combine(rank).ok());
    for (int rank = 0; rank < 2; ++rank) {
      const Status status = ep.synchronize(rank);
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
      if (i > 0 || rank < num_informed) {
        EXPECT_EQ(status.message(),
                  "reopen_step: the last step was skipped on all ranks; it has nothing to combine");
      }
    }
    EXPECT_TRUE(steps.outputs_are(7));
  }
  steps.run_well();
}

// Ranks from `first_caller` on call a step off, between two that go well. Whether or not all ranks combine
// without having synchronized, nothing is written, all are told who it was, and a step that is opened again
// remains skipped.
void call_steps_off(CrowdedSteps& steps, int first_caller, bool combines) {
  ExpertParallel& ep = *steps.ep;
  steps.run_well();
  steps.fill_outputs(7);
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = rank >= first_caller ? ep.call_off_step(rank) : steps.dispatch(rank, false);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  for (int rank = 0; rank < 2 && combines; ++rank)
    ASSERT_TRUE(steps.combine(rank, false, rank >= first_caller ? 0 : 4).ok());
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = ep.synchronize(rank);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    const std::optional<FaultRecord> record = ep.fault(rank);
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->kind, FaultKind::kCalledOff);
    EXPECT_GE(record->late_rank, first_caller);
    if (first_caller == 1) {
      EXPECT_EQ(status.message(),
                "call_off_step: rank 1 has called the step off; it was skipped on all ranks");
    }
  }
  EXPECT_TRUE(steps.outputs_are(7));
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ep.reopen_step(rank).ok());
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(steps.combine(rank, false, rank >= first_caller ? 0 : 4).ok());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ep.synchronize(rank).message(),
              "reopen_step: the last step was skipped on all ranks; it has nothing to combine");
  EXPECT_TRUE(steps.outputs_are(7));
  steps.run_well();
  for (int rank = 0; rank < 2; ++rank) EXPECT_FALSE(ep.fault(rank).has_value());
}

class CalledOffSteps : public ::testing::TestWithParam<std::tuple<TargetChoice, RowLayout>> {};

INSTANTIATE_TEST_SUITE_P(Targets, CalledOffSteps,
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

TEST_P(CalledOffSteps, AreSkippedByAllRanks) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const auto [target, layout] = GetParam();
  SWITCHYARD_SKIP_IF_ABSENT(target);
  for (const int first_caller : {0, 1})
    for (const bool combines : {false, true}) {
      SCOPED_TRACE("from rank " + std::to_string(first_caller) + (combines ? ", combined" : ""));
      CrowdedSteps steps(target, layout);
      call_steps_off(steps, first_caller, combines);
    }
}

TEST(CalledOffStepsInWeakMemory, AreSkippedByAllRanks) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CrowdedSteps steps(TargetChoice::kHost, seed % 2 == 0 ? RowLayout::kRagged : RowLayout::kPerRank,
                       weak_memory(seed));
    call_steps_off(steps, 1, seed % 3 == 0);
  }
}

// Whichever warp looks first.
TEST(CalledOffStepsInWeakMemory, AreNotSaidToBeOverCapacity) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    CrowdedSteps steps(TargetChoice::kHost, RowLayout::kRagged, weak_memory(seed), 3);
    ASSERT_TRUE(steps.ep->call_off_step(1).ok());
    for (const int rank : {0, 2}) ASSERT_TRUE(steps.dispatch(rank, /*is_crowded=*/true).ok());
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(steps.ep->synchronize(rank).message(),
                "call_off_step: rank 1 has called the step off; it was skipped on all ranks")
          << "rank " << rank << ", seed " << seed;
  }
}

TEST(CalledOffStepsRefused, WhereRanksDoNotTellTheirCountsFirst) {
  const auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto error_of = [&](ExpertParallelConfig config) {
    config.n_experts = 4, config.top_k = 2, config.hidden = 64, config.max_tokens_per_rank = 4;
    return must(ExpertParallel::create(*world, config))->call_off_step(0).message();
  };
  EXPECT_EQ(error_of({.protocol = Protocol::kSlotted}),
            "call_off_step: the protocol is slotted; it must be direct");
  EXPECT_EQ(error_of({.protocol = Protocol::kDirect, .routing = Routing::kSkipAllToAll}),
            "call_off_step: ranks that skip the all-to-all do not wait for each other");
}

// Rows per rank always have room.
class SkippedSteps : public ::testing::TestWithParam<std::tuple<TargetChoice, RowLayout>> {};

INSTANTIATE_TEST_SUITE_P(Targets, SkippedSteps,
                         ::testing::Combine(all_targets(),
                                            ::testing::Values(RowLayout::kRagged, RowLayout::kMasked)),
                         [](const auto& info) {
                           return target_name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == RowLayout::kRagged ? "Ragged" : "Masked");
                         });

TEST_P(SkippedSteps, AreOpenedAgainByAllRanksWhoeverKnows) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  const auto [target, layout] = GetParam();
  SWITCHYARD_SKIP_IF_ABSENT(target);
  for (const int num_informed : {0, 1, 2}) {
    SCOPED_TRACE(std::to_string(num_informed) + " ranks know");
    CrowdedSteps steps(target, layout);
    reopen_a_skipped_step(steps, num_informed);
  }
}

TEST(SkippedStepsInWeakMemory, AreOpenedAgainByAllRanks) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CrowdedSteps steps(TargetChoice::kHost, RowLayout::kRagged, weak_memory(seed));
    reopen_a_skipped_step(steps, static_cast<int>(seed % 3));
  }
}

}  // namespace
}  // namespace switchyard
