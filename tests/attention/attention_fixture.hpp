// What tests of attention share: a world of each target that is here, and a case compared with plain loops.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ep/ep_harness.hpp"
#include "reference/attention_case.hpp"

namespace switchyard::testing_support {

// Runs the case, more than once if asked to, and says what is wrong with it.
inline std::string compare(Rank& rank, const reference::AttentionCase& attention_case, int num_launches = 1) {
  auto harness = reference::AttentionHarness::create(rank, attention_case);
  if (!harness.ok()) return harness.status().to_string();
  for (int i = 0; i < num_launches; ++i)
    if (const Status status = harness.value()->launch(); !status.ok()) return status.to_string();
  const Result<reference::AttentionDifference> difference = harness.value()->compare();
  return difference.ok() ? difference.value().first_bad : difference.status().to_string();
}

// Attends beside a sequence, and rows of none, whose keys and values are no numbers, and says what leaks.
inline std::string compare_among_nans(Rank& rank, reference::AttentionCase attention_case,
                                      const std::vector<int>& query_lens = {1, 1, 1, 0}) {
  attention_case.query_lens = query_lens;
  attention_case.key_lens = {70, 100, 33, 5};
  attention_case.sequence_of_nans = 1;
  attention_case.num_rows_before = 2;
  attention_case.num_spare_rows = 3;
  const std::string difference = compare(rank, attention_case);
  if (!difference.empty()) return difference;
  attention_case.page_size = 32;
  const std::string in_pages = compare(rank, attention_case);
  return in_pages.empty() ? "" : "in pages: " + in_pages;
}

class AttentionOnTarget : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world_ = must(World::create({.target = GetParam()}));
  }
  Rank& rank() { return world_->rank(0); }
  World& world() { return *world_; }

 private:
  std::unique_ptr<World> world_;
};

inline const auto kAttentionTargets = ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda);
inline std::string name_of_target(const ::testing::TestParamInfo<TargetChoice>& info) {
  return info.param == TargetChoice::kHost ? "Host" : "Cuda";
}

}  // namespace switchyard::testing_support
