// Placements of experts: planned ones against every placement of small cases, and the files of both.
#include "workload/plan/plan_placement.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "files/counts_file.hpp"
#include "files/placement_file.hpp"

namespace switchyard::tools {
namespace {

double largest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

// The least that the fullest rank can have, if every expert is on one rank and a rank holds `num_seats`.
double best_load(const std::vector<double>& rows, size_t expert, size_t num_seats, std::vector<double>& loads,
                 std::vector<size_t>& held) {
  if (expert == rows.size()) return largest(loads);
  double best = 1e300;
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    if (held[rank] == num_seats) continue;
    loads[rank] += rows[expert];
    ++held[rank];
    best = std::min(best, best_load(rows, expert + 1, num_seats, loads, held));
    loads[rank] -= rows[expert];
    --held[rank];
  }
  return best;
}

TEST(PlanPlacement, IsWithinAThirdOfTheBestOfSmallCases) {
  std::mt19937_64 random(3);
  for (int draw = 0; draw < 120; ++draw) {
    const int n_ranks = 2 + static_cast<int>(random() % 3), n_experts = 2 + static_cast<int>(random() % 6);
    std::vector<double> rows;
    for (int i = 0; i < n_experts; ++i)
      rows.push_back(static_cast<double>(random() % (draw % 2 == 0 ? 10 : 1000)));
    const int num_seats = (n_experts + n_ranks - 1) / n_ranks + draw % 3;
    const Result<ExpertPlacement> planned = plan_placement({rows, n_ranks, 0, num_seats});
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    std::vector<double> loads(static_cast<size_t>(n_ranks));
    std::vector<size_t> held(static_cast<size_t>(n_ranks));
    const double best = best_load(rows, 0, static_cast<size_t>(num_seats), loads, held);
    EXPECT_LE(largest(load_of_ranks(planned.value(), rows, {})), best * 4 / 3 + 1e-9) << draw;
    EXPECT_LE(planned.value().num_seats_per_rank(), num_seats);
  }
}

TEST(PlanPlacement, IsNeverWorseThanEvenDivisionAndHoldsToItsLimits) {
  std::mt19937_64 random(4);
  for (int draw = 0; draw < 200; ++draw) {
    const int n_ranks = 1 + static_cast<int>(random() % 9), n_experts = 1 + static_cast<int>(random() % 30);
    const int most = std::min(n_experts * (n_ranks - 1), 12);
    const int num_replicas = most == 0 ? 0 : static_cast<int>(random() % static_cast<uint64_t>(most + 1));
    PlacementGoal goal{{}, n_ranks, num_replicas, 0, {}};
    for (int i = 0; i < n_experts; ++i)
      goal.rows_of_expert.push_back(random() % 4 == 0 ? 0 : static_cast<double>(random() % 5000));
    if (draw % 2 == 0)
      for (int rank = 0; rank < n_ranks; ++rank) goal.group_of_rank.push_back(rank / 3);
    const Result<ExpertPlacement> planned = plan_placement(goal),
                                  even = ExpertPlacement::even(n_experts, n_ranks);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    const auto largest_of = [&](const ExpertPlacement& placement) {
      return largest(load_of_ranks(placement, goal.rows_of_expert, goal.group_of_rank));
    };
    EXPECT_LE(largest_of(planned.value()), largest_of(even.value())) << draw;
    size_t num_held = 0;
    for (const std::vector<int>& experts : planned.value().experts_of_rank()) num_held += experts.size();
    EXPECT_TRUE(num_held == static_cast<size_t>(n_experts + num_replicas) || planned.value() == even.value());
    EXPECT_LE(planned.value().num_seats_per_rank(), (n_experts + num_replicas + n_ranks - 1) / n_ranks);
  }
}

TEST(PlanPlacement, ReplicasTakeTheLoadOfAPopularExpert) {
  const std::vector<double> rows = {800, 1, 1, 1, 1, 1, 1, 1};
  const Result<ExpertPlacement> planned = plan_placement({rows, 8, 7, 0, {}});
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(planned.value().seats_of(0).size(), 8u);
  EXPECT_LE(largest(load_of_ranks(planned.value(), rows, {})), 102);
  EXPECT_EQ(largest(load_of_ranks(ExpertPlacement::even(8, 8).value(), rows, {})), 800);
}

TEST(PlanPlacement, WhatDoesNotFitIsRefusedByName) {
  const auto message = [](const PlacementGoal& goal) { return plan_placement(goal).status().message(); };
  EXPECT_NE(message({{1, 1}, 2, 3, 0, {}}).find("--replicas: 3 must be 0..2"), std::string::npos);
  EXPECT_NE(message({{1, 1, 1}, 2, 0, 1, {}}).find("--experts-per-rank: 1"), std::string::npos);
}

class PlacementFile : public ::testing::Test {
 protected:
  PlacementFile()
      : path_(std::filesystem::temp_directory_path() / ("switchyard_file_" + std::to_string(getpid()))) {}
  ~PlacementFile() override { std::filesystem::remove(path_); }
  std::string with(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  // What is wrong with such a file for 2 ranks and 4 experts.
  std::string fault_of(const std::string& text) {
    const std::string message = read_placement_file(with(text), 2, 4).status().message();
    EXPECT_TRUE(message.starts_with("--placement: " + path_.string())) << message;
    return message;
  }
  std::string fault_of_counts(const std::string& text) {
    const std::string message = read_counts_file(with(text), 4).status().message();
    EXPECT_TRUE(message.starts_with("--counts: " + path_.string())) << message;
    return message;
  }

  const std::filesystem::path path_;
};

TEST_F(PlacementFile, IsReadAsItWasWritten) {
  const ExpertsOfRank placement = {{3, 0}, {}, {1, 2, 0}, {}};
  EXPECT_EQ(placement_text(placement), "3,0\n\n1,2,0\n\n");
  EXPECT_EQ(read_placement_file(with(placement_text(placement)), 4, 4).value(), placement);
  EXPECT_EQ(read_placement_file(with("# comment\r\n 3 , 0\r\n\r\n1,2,\t0\r\n\r\n"), 0, 4).value(), placement);
}

TEST_F(PlacementFile, FaultsNameTheLineAndTheLimit) {
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  contains(fault_of(""), "lines for 0 ranks; it must have one for each rank (2)");
  contains(fault_of("0,1,2,3\n"), "lines for 1 ranks");
  contains(fault_of("0,1\n2,3\n\n"), "lines for 3 ranks");
  contains(fault_of("0,1\n2,4\n"), "line 2: expert 4 must be 0..3 (--experts)");
  contains(fault_of("0,-1\n2,3\n"), "line 1: expert -1 must be 0..3");
  contains(fault_of("0,1,0\n2,3\n"), "line 1 has expert 0 twice");
  contains(fault_of("0,1\n2\n"), "has expert 3 on no rank");
  contains(fault_of("0,x\n2\n"), "line 1, column 3: not a whole number");
  contains(fault_of("0,1,\n2\n"), "line 1, column 5: not a whole number");
  contains(fault_of("0 1\n2\n"), "line 1: numbers must be separated by commas");
  contains(fault_of("99999999999999999999\n"), "does not fit 64 bits");
  contains(read_placement_file("/no/such/file", 2, 4).status().message(), "cannot be read");
  contains(read_placement_file("/", 2, 4).status().message(), "is a directory");
}

TEST_F(PlacementFile, CountsAreReadAsTextAndAsJson) {
  const std::vector<double> counts = {5, 0, 17};
  for (const char* text : {"5,0,17", "5\n0\n17\n", "# rows\r\n5,0\r\n17\r\n", "[5, 0, 17]",
                           "\n {\"tokens_per_expert\": [5,\n0, 17], \"seed\": 1}\n"})
    EXPECT_EQ(read_counts_file(with(text), 4).value(), counts) << text;
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  contains(fault_of_counts(""), "has 0 counts; it must have 1..4");
  contains(fault_of_counts("1,2,3,4,5"), "has 5 counts; it must have 1..4");
  contains(fault_of_counts("0,0"), "counts of 0 alone");
  contains(fault_of_counts("1,-2"), "line 1: the count of expert 1 is -2; it must be 0..9007199254740992");
  contains(fault_of_counts("1\n1.5"), "line 2: numbers must be separated by commas");
  contains(fault_of_counts("nan"), "line 1, column 1: not a whole number");
  contains(fault_of_counts("[1, 2"), "neither numbers nor JSON");
  contains(fault_of_counts("[1, 2.5]"), "the count of expert 1 is no whole number");
  contains(fault_of_counts("[18446744073709551615]"), "the count of expert 0 is no whole number");
  contains(fault_of_counts("{\"counts\": [1]}"), "must be one, or have one as \"tokens_per_expert\"");
}

}  // namespace
}  // namespace switchyard::tools
