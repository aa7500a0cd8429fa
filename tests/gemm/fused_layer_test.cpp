// What `switchyard run` compares a layer of fused matmuls with, against sums in double.
#include "reference/fused_layer.hpp"

#include <gtest/gtest.h>

#include <random>

#include "reference/gated_mlp.hpp"
#include "reference/token_format.hpp"

namespace switchyard::reference {
namespace {

constexpr size_t kHidden = 256, kWidth = 192;

std::vector<bf16> random_numbers(size_t size, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<bf16> numbers;
  for (size_t i = 0; i < size; ++i) numbers.push_back(to_bf16(normal(random)));
  return numbers;
}

std::vector<double> to_doubles(const std::vector<bf16>& numbers) {
  std::vector<double> values;
  for (const bf16 number : numbers) values.push_back(static_cast<double>(to_float(number)));
  return values;
}

// The weights of an output: a column of [inner][columns].
auto columns_of(const std::vector<bf16>& matrix, size_t columns) {
  return [&matrix, columns](size_t column) {
    std::vector<float> values;
    for (size_t i = column; i < matrix.size(); i += columns) values.push_back(to_float(matrix[i]));
    return values;
  };
}

// One token, of one rank, and one expert.
Step one_token(TokenFormatKind format) {
  Step step;
  step.n_ranks = step.n_experts = step.top_k = 1;
  step.hidden = static_cast<int>(kHidden);
  step.format = format;
  step.tokens = {random_numbers(kHidden, 1.0f, 3)};
  step.topk_ids = {{0}};
  step.topk_weights = {{0.75f}};
  return step;
}

TEST(FusedLayer, IsRoundedOnceBetweenTheProducts) {
  const MlpExperts mlp{static_cast<int>(kHidden),
                       static_cast<int>(kWidth),
                       {random_numbers(kHidden * 2 * kWidth, 0.06f, 1)},
                       {random_numbers(kWidth * kHidden, 0.07f, 2)}};
  for (const TokenFormatKind format :
       {TokenFormatKind::kBF16, TokenFormatKind::kFP8, TokenFormatKind::kFP8UE8M0}) {
    const Step step = one_token(format);
    const bool is_fp8 = format != TokenFormatKind::kBF16;
    const MatmulElement element = is_fp8 ? MatmulElement::kFP8 : MatmulElement::kBF16;
    const GatedMlp expert{.element = element,
                          .hidden = kHidden,
                          .width = kWidth,
                          .gate_up = columns_of(mlp.gate_up[0], 2 * kWidth),
                          .down = columns_of(mlp.down[0], kHidden)};
    std::vector<double> expected =
        expert.output(is_fp8 ? encode_token(format, step.tokens[0], 1).values : to_floats(step.tokens[0]));
    for (double& value : expected) value *= 0.75;
    const std::vector<double> fused = to_doubles(fused_moe_layer(step, {mlp, element})[0]),
                              plain = to_doubles(moe_layer(step, mlp)[0]);
    // The row and the output are rounded to bf16.
    EXPECT_LT(relative_distance(fused, expected), 0.003) << to_string(format);
    EXPECT_GT(relative_distance(plain, expected), relative_distance(fused, expected)) << to_string(format);
  }
}

}  // namespace
}  // namespace switchyard::reference
