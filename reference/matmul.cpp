#include "matmul.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "reference/number_format.hpp"

namespace switchyard::reference {

MatmulValue multiply(std::span<const float> row, std::span<const float> weights) {
  MatmulValue sum;
  for (size_t i = 0; i < row.size(); ++i) {
    const double product = static_cast<double>(row[i]) * static_cast<double>(weights[i]);
    sum.value += product;
    sum.magnitude += std::abs(product);
  }
  return sum;
}

std::vector<float> decode_weights(WeightFormat format, std::span<const uint8_t> codes,
                                  std::span<const uint8_t> scales, float tensor_scale) {
  const bool is_half_byte = code_bits_of(format) == 4;
  const NumberFormat& element = is_half_byte ? kE2M1 : kE4M3;
  std::vector<float> values;
  for (size_t i = 0; i < codes.size() * (is_half_byte ? 2 : 1); ++i) {
    const int code = is_half_byte ? codes[i / 2] >> (i % 2 * 4) & 0xf : codes[i];
    const int scale_code = scales[i / static_cast<size_t>(scale_group_size(format))];
    const double scale =
        format == WeightFormat::kNVFP4 ? kE4M3.value_of(scale_code) : std::ldexp(1.0, scale_code - 127);
    values.push_back(static_cast<float>(element.value_of(code) * scale * static_cast<double>(tensor_scale)));
  }
  return values;
}

double sum_error(MatmulElement element, size_t inner) {
  if (element == MatmulElement::kFP8) return 0x1p-11;
  return (static_cast<double>(inner) / 16 + 1) * 0x1p-22;
}

GatedValue activate(Activation activation, double gate, double gate_error, double up, double up_error) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  double activated = gate;
  switch (activation) {
    case Activation::kNone:
      return {gate, gate_error};
    case Activation::kSiLU:
      activated = gate * sigmoid(gate);
      break;
    case Activation::kGELU:
      activated = gate / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)));
      break;
    case Activation::kClampedSwiGLU:
      gate = std::min(gate, 7.0);
      up = std::clamp(up, -7.0, 7.0) + 1;
      activated = gate * sigmoid(1.702 * gate);
      break;
  }
  constexpr double kSteepest = 1.13;  // no activation's derivative is larger
  const double error = kSteepest * gate_error * (std::abs(up) + up_error) + std::abs(activated) * up_error;
  // And a few roundings in fp32.
  return {activated * up, error + std::abs(activated * up) * 0x1p-18};
}

double MatmulDifference::relative_error() const {
  return squared_value == 0 ? 0 : std::sqrt(squared_error / squared_value);
}

void MatmulDifference::add(MatmulElement element, std::span<const float> row, std::span<const float> weights,
                           bf16 output, const std::string& where) {
  const MatmulValue expected = multiply(row, weights);
  const double bound =
      std::abs(expected.value) * 0x1p-8 + expected.magnitude * sum_error(element, row.size());
  add(static_cast<double>(to_float(output)), expected.value, bound, where);
}

void MatmulDifference::add(double output, double expected, double bound, const std::string& where) {
  const double error = std::abs(output - expected);
  squared_error += error * error;
  squared_value += expected * expected;
  if (error <= bound || !first_bad.empty()) return;  // NaN is not within the bound
  char text[160];
  std::snprintf(text, sizeof(text), ": %g instead of %g (off by %g, at most %g)", output, expected, error,
                bound);
  first_bad = where + text;
}

}  // namespace switchyard::reference
