#include "fused_layer.hpp"

#include <algorithm>
#include <atomic>

#include "all_cores.hpp"
#include "gated_mlp.hpp"
#include "token_format.hpp"

namespace switchyard::reference {
namespace {

// row [inner] times matrix [inner][columns].
std::vector<float> product(const std::vector<float>& row, const std::vector<bf16>& matrix, size_t columns) {
  std::vector<float> sums(columns, 0.0f);
  for (size_t k = 0; k < row.size(); ++k) {
    const bf16* weights = matrix.data() + k * columns;
    for (size_t column = 0; column < columns; ++column)
      sums[column] = sums[column] + row[k] * to_float(weights[column]);
  }
  return sums;
}

std::vector<bf16> rounded_to_bf16(const std::vector<float>& values) {
  std::vector<bf16> numbers;
  for (const float value : values) numbers.push_back(to_bf16(value));
  return numbers;
}

}  // namespace

std::vector<bf16> fused_expert(const void* experts, const Step& step, int rank, int token_idx,
                               int expert_idx) {
  const auto& [mlp, element] = *static_cast<const FusedExperts*>(experts);
  const size_t width = static_cast<size_t>(mlp.width), expert = static_cast<size_t>(expert_idx);
  const std::vector<float> token = element == MatmulElement::kBF16
                                       ? to_floats(step.token(rank, token_idx, expert_idx))
                                       : step.encoded_token(rank, token_idx, expert_idx).values;
  const std::vector<float> gate_up = product(token, mlp.gate_up[expert], 2 * width);
  std::vector<float> activated;
  for (size_t i = 0; i < width; ++i) {
    const double gate = static_cast<double>(gate_up[i]), up = static_cast<double>(gate_up[width + i]);
    activated.push_back(static_cast<float>(activate(Activation::kSiLU, gate, 0, up, 0).value));
  }
  activated = element == MatmulElement::kFP8 ? through_fp8(std::move(activated))
                                             : to_floats(rounded_to_bf16(activated));
  return rounded_to_bf16(product(activated, mlp.down[expert], static_cast<size_t>(mlp.hidden)));
}

std::vector<std::vector<bf16>> fused_moe_layer(const Step& step, const FusedExperts& experts) {
  std::vector<std::vector<bf16>> outputs(static_cast<size_t>(step.n_ranks));
  std::atomic<int> next = 0;
  on_all_cores([&] {
    for (int rank = next++; rank < step.n_ranks; rank = next++)
      outputs[static_cast<size_t>(rank)] = rounded_to_bf16(combine_sums(step, rank, &fused_expert, &experts));
  });
  if (!step.skips_all_to_all) return outputs;
  for (auto first = outputs.begin(); first != outputs.end(); first += step.num_reducing()) {
    const std::vector<bf16> sum = summed({first, first + step.num_reducing()});
    std::fill(first, first + step.num_reducing(), sum);
  }
  return outputs;
}

}  // namespace switchyard::reference
