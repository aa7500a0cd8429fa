// The check that `switchyard bench ep --repeat-check` puts behind every step, on every target: it counts
// each output, and those that are wrong in any way.
#include <algorithm>

#include "ep/ep_harness.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using testing_support::must;

class CheckOutputTest : public testing::TestWithParam<TargetChoice> {
 protected:
  static constexpr size_t kNumValues = 1000 * 8;

  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world = must(World::create({.target = GetParam(), .n_ranks = 1}));
    for (size_t i = 0; i < kNumValues; ++i) right.push_back(to_bf16(static_cast<float>(i % 251)));
    output = must(rank().upload(right));
    scratch = must(rank().allocate<bf16>(64));
    check = must(rank().upload(
        std::vector<OutputTally>{{.expected = output_hash(right.data(), right.size() * sizeof(bf16))}}));
  }

  Rank& rank() { return world->rank(0); }
  Status enqueue() {
    return rank().launch(
        kernel_table(rank()).check_output, {.num_blocks = 3, .num_threads = 64},
        {check.data(), reinterpret_cast<std::byte*>(output.data()), kNumValues * sizeof(bf16),
         reinterpret_cast<std::byte*>(scratch.data()), 64 * sizeof(bf16)});
  }
  // How many of one more output, `values`, were found different: 0 or 1.
  uint64_t num_different(const std::vector<bf16>& values) {
    const OutputTally before = must(check.download()).front();
    EXPECT_TRUE(output.upload(values).ok());
    EXPECT_TRUE(enqueue().ok());
    const OutputTally after = must(check.download()).front();
    EXPECT_EQ(after.num_checked, before.num_checked + 1);
    EXPECT_EQ(after.sum, 0u);
    EXPECT_EQ(after.blocks_done, 0);
    return after.num_different - before.num_different;
  }

  std::unique_ptr<World> world;
  std::vector<bf16> right;
  Buffer<bf16> output, scratch;
  Buffer<OutputTally> check;
};

INSTANTIATE_TEST_SUITE_P(Targets, CheckOutputTest, testing_support::all_targets(),
                         [](const auto& info) { return testing_support::target_name(info.param); });

TEST_P(CheckOutputTest, AWrongOutputIsCounted) {
  EXPECT_EQ(num_different(right), 0u);
  for (const size_t i : {size_t{0}, kNumValues / 2 + 3, kNumValues - 1}) {
    std::vector<bf16> wrong = right;
    wrong[i].bits ^= 1;
    EXPECT_EQ(num_different(wrong), 1u) << "value " << i;
  }
  EXPECT_EQ(num_different(right), 0u) << "what went before does not matter";
}

TEST_P(CheckOutputTest, RightValuesInTheWrongPlacesAreCounted) {
  std::vector<bf16> swapped = right;
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 8);
  EXPECT_EQ(num_different(swapped), 1u);
  std::vector<bf16> shifted = right;
  std::rotate(shifted.begin(), shifted.begin() + 4, shifted.end());
  EXPECT_EQ(num_different(shifted), 1u);
}

TEST_P(CheckOutputTest, AReplayThatWritesNothingIsCounted) {
  const std::unique_ptr<Graph> graph = must(world->capture([&] { return enqueue(); }));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(graph->launch().ok());
  const OutputTally seen = must(check.download()).front();
  EXPECT_EQ(seen.num_checked, 5u);
  EXPECT_EQ(seen.num_different, 4u) << "all but the first find what the check has overwritten";
  for (const bf16 value : must(output.download())) ASSERT_EQ(value.bits, 0xffff);
  for (const bf16 value : must(scratch.download())) ASSERT_EQ(value.bits, 0xffff);
}

}  // namespace
}  // namespace switchyard
