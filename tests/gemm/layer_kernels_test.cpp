// The router and the grouped matmul, on every target, against the plain-loop reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "layer_kernels_fixture.hpp"
#include "sweep.hpp"
#include "switchyard/detail/ep/topk_softmax.hpp"
#include "switchyard/detail/gemm/grouped_matmul.hpp"

namespace switchyard {
namespace {

using testing_support::bits_of;
using testing_support::kLaunchShapes;
using testing_support::LayerTest;
using testing_support::must;
using testing_support::random_bf16;

std::string name_of(const testing::TestParamInfo<TargetChoice>& info) {
  return testing_support::target_name(info.param);
}

// The router.

class TopkSoftmax : public LayerTest {
 protected:
  void check(const std::vector<float>& logits, int num_tokens, int n_experts, int top_k) const {
    const reference::Routing expected = reference::topk_softmax(logits, num_tokens, n_experts, top_k);
    const size_t num_ids = expected.topk_ids.size();
    const Buffer<float> device_logits = upload(logits);
    for (const LaunchShape& shape : kLaunchShapes) {
      const Buffer<int32_t> ids = poisoned<int32_t>(num_ids + 1);
      const Buffer<float> weights = poisoned<float>(num_ids + 1);
      const TopkSoftmaxParams params{num_tokens,           n_experts,  top_k,
                                     device_logits.data(), ids.data(), weights.data()};
      ASSERT_TRUE(kernels().topk_softmax(shape, rank().stream(), params).ok());
      std::vector<int32_t> seen_ids = must(ids.download());
      const std::vector<float> seen_weights = must(weights.download());
      EXPECT_EQ(seen_ids.back(), static_cast<int32_t>(0xeeeeeeee)) << "written past the end";
      seen_ids.pop_back();
      ASSERT_EQ(seen_ids, expected.topk_ids) << n_experts << " experts, top " << top_k;
      for (size_t i = 0; i < num_ids; ++i)
        ASSERT_EQ(seen_weights[i], expected.topk_weights[i])
            << n_experts << " experts, top " << top_k << ", value " << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, TopkSoftmax, testing_support::all_targets(), name_of);

std::vector<float> random_logits(int num_tokens, int n_experts, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(static_cast<size_t>(num_tokens) * n_experts);
  for (float& logit : logits) logit = static_cast<float>(random() % 100003) / 12345.0f - 4.0f;
  return logits;
}

TEST_P(TopkSoftmax, AnyNumberOfExpertsUpToTheLimit) {
  for (const int n_experts : testing_support::sweep({1, 2, 31, 32, 33, 256, 1000, kMaxExperts, 100}))
    for (const int top_k : {1, 8, 31, kMaxTopK})
      if (top_k <= n_experts && !HasFatalFailure())
        check(random_logits(5, n_experts, n_experts), 5, n_experts, top_k);
}

TEST_P(TopkSoftmax, EveryExpertCanBeChosen) {
  for (const int n_experts : {1, 5, 32}) check(random_logits(4, n_experts, 9), 4, n_experts, n_experts);
}

TEST_P(TopkSoftmax, OneTokenAndManyTokens) {
  for (const int num_tokens : {1, 2, 17, 100}) check(random_logits(num_tokens, 48, 3), num_tokens, 48, 6);
}

TEST_P(TopkSoftmax, NoTokensWriteNothing) { check({}, 0, 16, 4); }

TEST_P(TopkSoftmax, TiesGoToTheLowerIndex) {
  check(std::vector<float>(3 * 100, 1.5f), 3, 100, 32);
  std::vector<float> logits = random_logits(20, 130, 11);
  for (float& logit : logits) logit = std::round(logit);  // nine values among 130 experts
  check(logits, 20, 130, 16);
  const std::vector<float> zeros = {0.0f, -0.0f, 0.0f, -0.0f, -1.0f, 0.0f};  // both zeros are the same logit
  check(zeros, 1, 6, 5);
}

TEST_P(TopkSoftmax, NotANumberComesLast) {
  std::vector<float> logits(64);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = i % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(i % 7);
  check(logits, 1, 64, 8);
}

TEST_P(TopkSoftmax, InfiniteLogitsShareTheWeight) {
  std::vector<float> logits(32, -std::numeric_limits<float>::infinity());
  check(logits, 1, 32, 4);
  logits[5] = logits[9] = std::numeric_limits<float>::infinity();
  check(logits, 1, 32, 4);
}

TEST_P(TopkSoftmax, LargeLogitsDoNotOverflow) {
  std::vector<float> logits = random_logits(6, 40, 5);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += i / 40 % 2 == 0 ? 20000.0f : -20000.0f;
  check(logits, 6, 40, 8);
}

TEST_P(TopkSoftmax, ExpertsMaskedByMinusInfinityComeLastAndWeighNothing) {
  std::vector<float> logits = random_logits(4, 40, 6);
  for (size_t i = 0; i < logits.size(); ++i)
    if (i % 40 % 7 != 2) logits[i] = -std::numeric_limits<float>::infinity();
  check(logits, 4, 40, 8);  // more than the six that are left
}

// The grouped matmul.

reference::RaggedGroups ragged(const std::vector<uint32_t>& rows_per_group, std::vector<int32_t> expert_ids) {
  reference::RaggedGroups groups{{0}, std::move(expert_ids)};
  for (const uint32_t num_rows : rows_per_group)
    groups.row_offsets.push_back(groups.row_offsets.back() + num_rows);
  return groups;
}

class GroupedMatmul : public LayerTest {
 protected:
  void check(const reference::RaggedGroups& groups, int n_experts, int inner, int columns) const {
    const size_t num_rows = groups.row_offsets.back();
    const std::vector<bf16> rows = random_bf16(num_rows * inner, 1);
    std::vector<std::vector<bf16>> matrices;
    std::vector<bf16> weights;
    for (int expert = 0; expert < n_experts; ++expert) {
      matrices.push_back(random_bf16(static_cast<size_t>(inner) * columns, 100 + expert));
      weights.insert(weights.end(), matrices.back().begin(), matrices.back().end());
    }
    // The row after the last must stay as it is.
    std::vector<bf16> expected = reference::grouped_matmul(groups, rows, matrices, inner, columns);
    expected.resize(expected.size() + columns, bf16{0xeeee});
    const Buffer<bf16> device_rows = upload(rows), device_weights = upload(weights);
    const Buffer<uint32_t> row_offsets = upload(groups.row_offsets);
    const Buffer<int32_t> expert_ids = upload(groups.expert_ids);
    for (const LaunchShape& shape : kLaunchShapes) {
      const Buffer<bf16> output = poisoned<bf16>(expected.size());
      const GroupedMatmulParams params{static_cast<int32_t>(groups.expert_ids.size()),
                                       inner,
                                       columns,
                                       device_rows.data(),
                                       device_weights.data(),
                                       row_offsets.data(),
                                       nullptr,
                                       expert_ids.data(),
                                       output.data()};
      ASSERT_TRUE(kernels().grouped_matmul(shape, rank().stream(), params).ok());
      ASSERT_EQ(bits_of(must(output.download())), bits_of(expected))
          << num_rows << " rows of " << inner << " to " << columns << " columns";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, GroupedMatmul, testing_support::all_targets(), name_of);

TEST_P(GroupedMatmul, EmptyGroupsTakeNoRows) {
  check(ragged({0, 4, 0, 0, 8, 0}, {0, 1, 2, 3, 4, 5}), 6, 32, 16);
  check(ragged({0, 0, 0}, {0, 1, 2}), 3, 32, 16);
  check(ragged({}, {}), 1, 32, 16);
}

TEST_P(GroupedMatmul, GroupsOfAnyNumberOfRows) {
  check(ragged({1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 13}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), 11, 24, 24);
}

TEST_P(GroupedMatmul, AnyInnerSizeAndAnyMultipleOfEightColumns) {
  for (const int inner : {1, 7, 100})
    for (const int columns : {8, 16, 72})
      if (!HasFatalFailure()) check(ragged({3, 0, 6}, {0, 1, 2}), 3, inner, columns);
}

TEST_P(GroupedMatmul, AGroupUsesTheWeightsOfItsExpertWhateverItsIndex) {
  check(ragged({2, 5, 3, 1}, {3, 0, 3, 1}), 4, 16, 16);
}

TEST_P(GroupedMatmul, OneGroupWithManyRows) { check(ragged({150}, {0}), 1, 20, 48); }

}  // namespace
}  // namespace switchyard
