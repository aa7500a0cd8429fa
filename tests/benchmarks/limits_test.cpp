// The bare kernels that benchmarks compare with, on every target: they move what they say.
#include "benchmarks/limits.hpp"

#include <algorithm>
#include <numeric>

#include "ep/ep_harness.hpp"

namespace switchyard {
namespace {

using testing_support::must;

struct LimitShape {
  uint32_t num_rows;
  int top_k;
  int hidden;
};

class Limits : public testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world = must(World::create({.target = GetParam(), .n_ranks = 1}));
  }
  Rank& rank() { return world->rank(0); }
  const benchmarks::LimitKernels& kernels() { return benchmarks::limit_kernels(world->target()); }

  // Small whole numbers, which sums keep exact.
  std::vector<bf16> values(size_t count) {
    std::vector<bf16> result(count);
    for (bf16& value : result) value = to_bf16(static_cast<float>(random() % 16));
    return result;
  }
  std::vector<uint32_t> shuffled_indices(const LimitShape& shape) {
    std::vector<uint32_t> row_indices(shape.num_rows * static_cast<size_t>(shape.top_k));
    std::iota(row_indices.begin(), row_indices.end(), 0u);
    std::shuffle(row_indices.begin(), row_indices.end(), random);
    return row_indices;
  }

  std::unique_ptr<World> world;
  std::mt19937_64 random{5};
};

INSTANTIATE_TEST_SUITE_P(Targets, Limits, testing_support::all_targets(),
                         [](const auto& info) { return testing_support::target_name(info.param); });

// Fewer rows than warps and more, rows of one chunk and such that few warps have room for.
constexpr LimitShape kShapes[] = {{1, 1, 8}, {5, 3, 72}, {70, 8, 256}, {9, 32, 512}, {11, 2, 16384}};
constexpr LaunchShape kLaunch{.num_blocks = 3, .num_threads = 256};

TEST_P(Limits, ScatterWritesEveryRowToEachOfItsIndices) {
  for (const LimitShape& shape : kShapes) {
    const size_t hidden = static_cast<size_t>(shape.hidden);
    const std::vector<bf16> rows = values(shape.num_rows * hidden);
    const std::vector<uint32_t> row_indices = shuffled_indices(shape);
    const auto rows_there = must(rank().upload(rows));
    const auto indices_there = must(rank().upload(row_indices));
    const auto output = must(rank().allocate<bf16>(row_indices.size() * hidden));
    const Status launched = kernels().scatter(
        kLaunch, rank().stream(),
        {rows_there.data(), output.data(), indices_there.data(), shape.num_rows, shape.top_k, shape.hidden});
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    const std::vector<bf16> seen = must(output.download());
    for (size_t i = 0; i < row_indices.size(); ++i)
      ASSERT_TRUE(
          std::equal(seen.begin() + static_cast<ptrdiff_t>(row_indices[i] * hidden),
                     seen.begin() + static_cast<ptrdiff_t>((row_indices[i] + 1) * hidden),
                     rows.begin() + static_cast<ptrdiff_t>(i / static_cast<size_t>(shape.top_k) * hidden)))
          << "hidden " << hidden << ", copy " << i;
  }
}

TEST_P(Limits, GatherSumsTheRowsOfEveryOutput) {
  for (const LimitShape& shape : kShapes) {
    const size_t hidden = static_cast<size_t>(shape.hidden), top_k = static_cast<size_t>(shape.top_k);
    const std::vector<bf16> rows = values(shape.num_rows * top_k * hidden);
    const std::vector<uint32_t> row_indices = shuffled_indices(shape);
    std::vector<float> weights(row_indices.size());
    for (float& weight : weights) weight = static_cast<float>(random() % 4) / 4;
    const auto rows_there = must(rank().upload(rows));
    const auto indices_there = must(rank().upload(row_indices));
    const auto weights_there = must(rank().upload(weights));
    const auto output = must(rank().allocate<bf16>(shape.num_rows * hidden));
    const Status launched =
        kernels().gather(kLaunch, rank().stream(),
                         {rows_there.data(), output.data(), indices_there.data(), weights_there.data(),
                          shape.num_rows, shape.top_k, shape.hidden});
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    const std::vector<bf16> seen = must(output.download());
    for (size_t i = 0; i < seen.size(); ++i) {
      float sum = 0;
      for (size_t term = i / hidden * top_k; term < (i / hidden + 1) * top_k; ++term)
        sum += weights[term] * to_float(rows[row_indices[term] * hidden + i % hidden]);
      ASSERT_EQ(seen[i], to_bf16(sum)) << "hidden " << hidden << ", value " << i;
    }
  }
}

// It writes nothing: that it ends, having waited for every load, is all that can be seen.
TEST_P(Limits, ReadEndsForAnySize) {
  for (const size_t num_values : {size_t{8}, size_t{16384}, size_t{16392}, size_t{300000}}) {
    const auto keys = must(rank().upload(values(num_values))),
               others = must(rank().upload(values(num_values)));
    const Status launched = kernels().read({.num_blocks = 3, .num_threads = 32}, rank().stream(),
                                           {{keys.data(), others.data()}, num_values * sizeof(bf16)});
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    EXPECT_TRUE(rank().synchronize().ok());
  }
}

}  // namespace
}  // namespace switchyard
