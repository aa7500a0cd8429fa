#include "switchyard/types/expert_placement.hpp"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

using Lists = std::vector<std::vector<int>>;

ExpertPlacement placement_of(int n_experts, Lists lists) {
  return ExpertPlacement::from_lists(n_experts, std::move(lists)).value();
}

TEST(ExpertPlacement, EvenDivisionDiffersByAtMostOneExpert) {
  for (int n_experts : {1, 7, 256})
    for (int n_ranks : {1, 3, 7, 8, 9}) {
      const ExpertPlacement even = ExpertPlacement::even(n_experts, n_ranks).value();
      EXPECT_EQ(even.n_ranks(), n_ranks);
      EXPECT_EQ(even.num_seats_per_rank(), (n_experts + n_ranks - 1) / n_ranks);
      EXPECT_EQ(even.is_plain(), n_experts % n_ranks == 0);
      int next_expert = 0;
      for (const std::vector<int>& experts : even.experts_of_rank()) {
        EXPECT_GE(static_cast<int>(experts.size()), n_experts / n_ranks);
        for (const int expert : experts) EXPECT_EQ(expert, next_expert++);
      }
      EXPECT_EQ(next_expert, n_experts);
    }
}

TEST(ExpertPlacement, SeatsAreCountedInTheOrderOfTheList) {
  const ExpertPlacement placement = placement_of(3, {{2, 0}, {}, {1, 2, 0}});
  EXPECT_EQ(placement.num_seats_per_rank(), 3);
  EXPECT_FALSE(placement.is_plain());
  EXPECT_EQ(placement.expert_at({0, 0}), 2);
  EXPECT_EQ(placement.expert_at({0, 2}), -1);
  EXPECT_EQ(placement.expert_at({1, 0}), -1);
  ASSERT_EQ(placement.seats_of(2).size(), 2u);
  EXPECT_EQ(placement.seats_of(2)[1], (ExpertSeat{2, 1}));
}

TEST(ExpertPlacement, PlainOnlyInAscendingOrderWithoutReplicas) {
  EXPECT_TRUE(placement_of(4, {{0, 1}, {2, 3}}).is_plain());
  EXPECT_FALSE(placement_of(4, {{1, 0}, {2, 3}}).is_plain());
  EXPECT_FALSE(placement_of(2, {{0, 1}, {0, 1}}).is_plain());
}

TEST(ExpertPlacement, TheNearestReplicaIsPicked) {
  const ExpertPlacement placement = placement_of(1, {{0}, {}, {0}, {0}, {}, {}, {}, {}});
  const std::vector<int> groups = {0, 0, 1, 1, 1, 1, 2, 2};
  EXPECT_EQ(placement.seat_for(0, 2, groups).rank, 2) << "its own";
  EXPECT_EQ(placement.seat_for(0, 1, groups).rank, 0) << "of its group";
  EXPECT_EQ(placement.seat_for(0, 4, groups).rank, 2) << "the first of two of its group";
  EXPECT_EQ(placement.seat_for(0, 5, groups).rank, 3) << "the second of two of its group";
  EXPECT_EQ(placement.seat_for(0, 6, groups).rank, 0) << "6 % 3 of all";
  EXPECT_EQ(placement.seat_for(0, 7, groups).rank, 2) << "7 % 3 of all";
  EXPECT_EQ(placement.seat_for(0, 4).rank, 2) << "one group: 4 % 3 of all";
}

TEST(ExpertPlacement, ErrorsNameExpertRankAndLimit) {
  const auto message = [](int n_experts, Lists lists) {
    return ExpertPlacement::from_lists(n_experts, std::move(lists)).status().message();
  };
  EXPECT_EQ(message(4, {{0, 1}, {2, 4}}), "placement: rank 1 holds expert 4; experts are 0..3");
  EXPECT_EQ(message(4, {{0, 1}, {-1}}), "placement: rank 1 holds expert -1; experts are 0..3");
  EXPECT_EQ(message(2, {{0}, {1, 0, 1}}),
            "placement: rank 1 holds expert 1 twice; one replica per rank is the limit");
  EXPECT_EQ(message(3, {{0}, {2}}),
            "placement: expert 1 is on no rank; all of 0..2 must be on one of the 2 ranks");
  EXPECT_EQ(message(0, {{}}), "placement: n_experts is 0; it must be 1..1024");
  EXPECT_EQ(message(1, {}), "placement: the number of ranks is 0; it must be 1..512");
  EXPECT_FALSE(ExpertPlacement::even(8, -1).ok());
}

}  // namespace
}  // namespace switchyard
