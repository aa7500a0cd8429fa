#include "reference/gated_mlp.hpp"

#include <cmath>

#include "reference/token_format.hpp"

namespace switchyard::reference {
namespace {

double bias_of(const std::vector<float>& bias, size_t column) {
  return bias.empty() ? 0.0 : static_cast<double>(bias[column]);
}

}  // namespace

std::vector<float> through_fp8(std::vector<float> values) {
  const size_t size = values.size();
  values.resize((size + kMatmulScaleGroup - 1) / kMatmulScaleGroup * kMatmulScaleGroup);  // with zeros
  const QuantizedToken quantized = blockwise_fp8(kE4M3, values);
  for (size_t i = 0; i < size; ++i)
    values[i] = static_cast<float>(kE4M3.value_of(quantized.codes[i])) *
                quantized.float_scales[i / kMatmulScaleGroup];
  values.resize(size);
  return values;
}

std::vector<float> GatedMlp::activated(const std::vector<float>& token) const {
  std::vector<float> values;
  const bool is_stacked = gate_layout == GateLayout::kStacked;
  const auto sum_of = [&](size_t column) {
    return multiply(token, gate_up(column)).value + bias_of(gate_up_bias, column);
  };
  for (size_t i = 0; i < width; ++i) {
    const double gate = sum_of(is_stacked ? i : 2 * i), up = sum_of(is_stacked ? width + i : 2 * i + 1);
    values.push_back(static_cast<float>(activate(activation, gate, 0, up, 0).value));
  }
  if (element == MatmulElement::kFP8) return through_fp8(std::move(values));
  for (float& value : values) value = to_float(to_bf16(value));
  return values;
}

std::vector<double> GatedMlp::output(const std::vector<float>& token) const {
  const std::vector<float> inner = activated(token);
  std::vector<double> values;
  for (size_t column = 0; column < hidden; ++column)
    values.push_back(multiply(inner, down(column)).value + bias_of(down_bias, column));
  return values;
}

double relative_distance(const std::vector<double>& values, const std::vector<double>& expected) {
  double squared_error = 0, squared_value = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squared_error += (values[i] - expected[i]) * (values[i] - expected[i]);
    squared_value += expected[i] * expected[i];
  }
  if (squared_value == 0) return squared_error == 0 ? 0 : INFINITY;
  return std::sqrt(squared_error / squared_value);
}

}  // namespace switchyard::reference
