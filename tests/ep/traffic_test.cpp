// The bytes that leave ranks, against a small step that was counted by hand.
#include "reference/traffic.hpp"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

using reference::count_traffic;
using reference::StepTraffic;
using Bytes = std::vector<uint64_t>;

// Four ranks with two experts each, top-2.
reference::Step make_small_step() {
  reference::Step step{/*n_ranks=*/4, /*n_experts=*/8, /*top_k=*/2, /*hidden=*/16, {}, {}, {}};
  step.topk_ids = {{0, 2,    // to rank 0, which it is, and to rank 1
                    7, 7},   // to rank 3, the same expert twice
                   {-1, 4},  // padding, and to rank 2
                   {},
                   {5, 1}};  // to rank 2 and to rank 0
  return step;
}

TEST(Traffic, OfASmallStepIsAsCountedByHand) {
  const StepTraffic slotted = count_traffic(make_small_step(), {.protocol = Protocol::kSlotted,
                                                                .p2p_world_size = 2,
                                                                .dispatch_message_bytes = 100,
                                                                .combine_message_bytes = 10});
  EXPECT_EQ(slotted.dispatch.to_other_ranks, (Bytes{200, 100, 0, 200}));  // a repeated id is sent once
  EXPECT_EQ(slotted.dispatch.to_other_groups, (Bytes{100, 100, 0, 100}));
  EXPECT_EQ(slotted.combine.to_other_ranks, (Bytes{10, 10, 20, 20}));
  EXPECT_EQ(slotted.combine.to_other_groups, (Bytes{10, 0, 10, 20}));
  EXPECT_EQ(slotted.dispatch.total_to_other_ranks(), 500u);
  EXPECT_EQ(slotted.combine.total_to_other_groups(), 40u);
}

TEST(Traffic, TheDirectProtocolSendsRepeatedIdsEach) {
  const StepTraffic direct = count_traffic(make_small_step(), {.protocol = Protocol::kDirect,
                                                               .p2p_world_size = 2,
                                                               .dispatch_message_bytes = 100,
                                                               .combine_message_bytes = 10,
                                                               .bytes_beside_row = 3});
  EXPECT_EQ(direct.dispatch.to_other_ranks, (Bytes{309, 103, 0, 206}));
  EXPECT_EQ(direct.dispatch.to_other_groups, (Bytes{206, 103, 0, 103}));
}

// To rank 3 goes one of two rows, and of the other only what is beside it.
TEST(Traffic, ATokenThatIsCarriedOnceToEachRank) {
  const StepTraffic traffic = count_traffic(make_small_step(), {.protocol = Protocol::kDirect,
                                                                .p2p_world_size = 2,
                                                                .dispatch_message_bytes = 100,
                                                                .combine_message_bytes = 10,
                                                                .bytes_beside_row = 3,
                                                                .is_carried_once = true});
  EXPECT_EQ(traffic.dispatch.to_other_ranks, (Bytes{209, 103, 0, 206}));
  EXPECT_EQ(traffic.dispatch.to_other_groups, (Bytes{106, 103, 0, 103}));
  EXPECT_EQ(traffic.dispatch.least_to_other_ranks, 500u);
  EXPECT_EQ(traffic.combine.least_to_other_ranks, 50u);
}

TEST(Traffic, NothingLeavesTheOnlyGroupAndEverythingAGroupOfOne) {
  for (const int group : {0, 4}) {
    const StepTraffic traffic =
        count_traffic(make_small_step(),
                      {.p2p_world_size = group, .dispatch_message_bytes = 100, .combine_message_bytes = 10});
    EXPECT_EQ(traffic.dispatch.total_to_other_ranks(), 500u);
    EXPECT_EQ(traffic.dispatch.total_to_other_groups(), 0u);
    EXPECT_EQ(traffic.combine.total_to_other_groups(), 0u);
  }
  const StepTraffic traffic = count_traffic(
      make_small_step(), {.p2p_world_size = 1, .dispatch_message_bytes = 100, .combine_message_bytes = 10});
  EXPECT_EQ(traffic.dispatch.to_other_groups, traffic.dispatch.to_other_ranks);
  EXPECT_EQ(traffic.combine.to_other_groups, traffic.combine.to_other_ranks);
}

TEST(Traffic, MessagesPerExpertPerRankAndPerGroupAreAsCountedByHand) {
  reference::Step step = make_small_step();
  step.top_k = 4;
  step.topk_ids = {{2, 3, 3, 5},   // to rank 1, by two experts, one of them twice, and to rank 2
                   {4, 6, 7, -1},  // to rank 2 and, by two experts, to rank 3
                   {},
                   {}};
  const auto count = [&](reference::MessagePer per) {
    const reference::MessageCounts counts = reference::count_messages(
        step, per, [](int, int expert) { return expert / 2; }, /*group_size=*/2);
    Bytes all;
    for (int from = 0; from < 4; ++from)
      for (int to = 0; to < 4; ++to) all.push_back(counts.at(from, to));
    return all;
  };
  using reference::MessagePer;
  EXPECT_EQ(count(MessagePer::kChoice), (Bytes{0, 3, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(count(MessagePer::kExpert), (Bytes{0, 2, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(count(MessagePer::kRank), (Bytes{0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
  // Rank 1 has the place of rank 3 in its group, which passes the token on to rank 2.
  EXPECT_EQ(count(MessagePer::kGroup), (Bytes{0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0}));
}

}  // namespace
}  // namespace switchyard
