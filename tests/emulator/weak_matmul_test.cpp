// The matmuls of fp8, of coded weights and of coded rows in weak memory, and mutants for the proxy fences of
// the latter two. A block has more steps than stages, so that every stage is filled again after it was read.
#include "ep/ep_harness.hpp"
#include "gemm/matmul_operand.hpp"
#include "reference/matmul.hpp"
#include "sweep.hpp"
#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "weak_memory_fixture.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class WeakMemoryMatmul : public WeakMemoryTest {};

// Two groups of a few rows. In fp8 all weights have the same scale, and rows have their own. Coded rows are
// MXFP8 with scales of 1.
std::string run_matmul(const MatmulTuning& tuning, uint64_t seed, const std::optional<OrderMutant>& mutant,
                       TokenFormatKind row_format = TokenFormatKind::kBF16) {
  constexpr size_t kNumGroups = 2, kRowsPerGroup = 2, kNumRows = kNumGroups * kRowsPerGroup;
  const size_t num_steps = static_cast<size_t>(tuning.num_stages) / kNumGroups + 1;
  const size_t inner = num_steps * static_cast<size_t>(tuning.stage_inner), columns = 128;
  const TestHooks hooks{.mutant = mutant};
  const auto world = must(World::create({.target = TargetChoice::kHost, .host = weak_memory(seed, &hooks)}));
  Rank& rank = world->rank(0);
  const bool has_coded_rows = row_format != TokenFormatKind::kBF16;
  Operand rows(has_coded_rows ? MatmulElement::kFP8 : tuning.element, kNumRows * inner, 1);
  const bool has_codes = is_coded(tuning.weights);
  CodedWeights coded;
  if (has_codes) coded = CodedWeights(tuning.weights, kNumGroups, columns * inner, 2);
  const Operand weights = has_codes ? coded : Operand(tuning.element, kNumGroups * columns * inner, 2);
  const std::vector<float> row_scales = random_scales(num_steps * kNumRows, 3);  // [step][row]
  const auto rows_memory = must(rank.upload(rows.bytes)), weights_memory = must(rank.upload(weights.bytes));
  const auto row_scales_memory = must(rank.upload(row_scales));
  const auto ones = must(rank.upload(std::vector<e8m0>(kNumRows * inner / 32, e8m0{127})));
  const auto weight_scales = must(rank.upload(std::vector<float>(kNumGroups * num_steps, 1)));
  const auto code_scales = must(rank.upload(coded.scales));
  const auto row_offsets = must(rank.upload(std::vector<uint32_t>{0, kRowsPerGroup, kNumRows}));
  auto output = must(rank.allocate<bf16>(kNumRows * columns));
  const auto matmul = must(GroupedMatmul::create(rank, {.num_groups = kNumGroups,
                                                        .element = tuning.element,
                                                        .weights = tuning.weights,
                                                        .row_format = row_format,
                                                        .inner = static_cast<int>(inner),
                                                        .columns = static_cast<int>(columns),
                                                        .max_rows = kNumRows,
                                                        .num_blocks = 1,
                                                        .tuning = tuning}));
  Status status =
      matmul->run({.rows = rows_memory.data(),
                   .weights = weights_memory.data(),
                   .output = output.data(),
                   .row_offsets = row_offsets.data(),
                   .row_scales = has_coded_rows ? static_cast<const void*>(ones.data())
                                 : tuning.element == MatmulElement::kFP8 ? row_scales_memory.data()
                                                                         : nullptr,
                   .weight_scales = has_codes ? static_cast<const void*>(code_scales.data())
                                    : tuning.element == MatmulElement::kFP8 ? weight_scales.data()
                                                                            : nullptr});
  if (status.ok()) status = rank.synchronize();
  if (!status.ok()) return status.to_string();

  const std::vector<bf16> values = must(output.download());
  for (size_t i = 0; i < rows.values.size() && tuning.element == MatmulElement::kFP8; ++i)
    rows.values[i] *= row_scales[i % inner / kMatmulScaleGroup * kNumRows + i / inner];
  reference::MatmulDifference difference;
  for (size_t row = 0; row < kNumRows; ++row)
    for (size_t column = 0; column < columns; ++column)
      difference.add(tuning.element, rows.at(row, inner),
                     weights.at(row / kRowsPerGroup * columns + column, inner),
                     values[row * columns + column],
                     "row " + std::to_string(row) + ", column " + std::to_string(column));
  return difference.first_bad;
}

// With one group of columns in a step, and with two.
constexpr MatmulTuning kOneGroup{64, 128, 128, 8, MatmulSharing::kNone, MatmulElement::kFP8};
constexpr MatmulTuning kTwoGroups{128, 256, 128, 4, MatmulSharing::kNone, MatmulElement::kFP8};
constexpr MatmulTuning kCoded = coded_tuning(WeightFormat::kMXFP4, 16);

TEST_F(WeakMemoryMatmul, IsRightForEverySeed) {
  for (const MatmulTuning& tuning : {kOneGroup, kTwoGroups, kCoded})
    for (uint64_t seed = 0; seed < 5; ++seed)
      ASSERT_EQ(run_matmul(tuning, seed, std::nullopt), "") << to_string(tuning) << ", seed " << seed;
}

// The values come out right all the same; what shows is that a load of the next stage may overtake those of
// the codes.
TEST_F(WeakMemoryMatmul, CodesThatAreNotFencedAreCaught) {
  expect_caught([](uint64_t seed) {
    return run_matmul(kCoded, seed, OrderMutant{"MatmulConsumer*::multiply_coded(", WordKind::kProxyFence});
  });
}

TEST_F(WeakMemoryMatmul, RowsThatAreDecodedAreRightForEverySeed) {
  for (const MatmulTuning& tuning : {kDecodingTunings[0], kCoded})
    for (uint64_t seed = 0; seed < 5; ++seed)
      ASSERT_EQ(run_matmul(tuning, seed, std::nullopt, TokenFormatKind::kMXFP8), "")
          << to_string(tuning) << ", seed " << seed;
}

TEST_F(WeakMemoryMatmul, DecodedRowsThatAreNotFencedAreCaught) {
  expect_caught([](uint64_t seed) {
    return run_matmul(kDecodingTunings[0], seed,
                      OrderMutant{"MatmulDecoder*::decode(", WordKind::kProxyFence}, TokenFormatKind::kMXFP8);
  });
}

}  // namespace
}  // namespace switchyard
