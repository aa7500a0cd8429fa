// The numbers of a workload: they follow from the seed, whatever number of cores draws them.
#include "workload/workload.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace switchyard::tools {
namespace {

// 40 tokens are drawn by one thread, 200 by several, in pieces that end inside a token.
TEST(Workload, TheNumbersOfATokenDoNotDependOnHowManyTokensThereAre) {
  Workload few{.n_ranks = 2, .tokens_per_rank = {40, 40}, .hidden = 1024, .top_k = 4, .n_experts = 500};
  Workload many = few;
  many.tokens_per_rank = {200, 200};
  const reference::Step of_few = make_step(few, 3), of_many = make_step(many, 3);
  const auto few_logits = make_logits(few, 3), many_logits = make_logits(many, 3);
  const auto begins_with = [](const auto& longer, const auto& shorter) {
    return longer.size() == 5 * shorter.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
  };
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(begins_with(of_many.tokens[rank], of_few.tokens[rank]));
    EXPECT_TRUE(begins_with(of_many.topk_weights[rank], of_few.topk_weights[rank]));
    EXPECT_TRUE(begins_with(many_logits[rank], few_logits[rank]));
  }
  EXPECT_NE(of_many.tokens[0], of_many.tokens[1]);
}

}  // namespace
}  // namespace switchyard::tools
