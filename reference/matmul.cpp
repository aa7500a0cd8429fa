#include "matmul.hpp"

#include <cmath>
#include <cstdio>

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

double MatmulDifference::relative_error() const {
  return squared_value == 0 ? 0 : std::sqrt(squared_error / squared_value);
}

void MatmulDifference::add(MatmulElement element, std::span<const float> row, std::span<const float> weights,
                           bf16 output, const std::string& where) {
  const MatmulValue expected = multiply(row, weights);
  const double error = std::abs(static_cast<double>(to_float(output)) - expected.value);
  const double num_sums = static_cast<double>(row.size()) / 16 + 1;
  const double sum_error = element == MatmulElement::kFP8 ? 0x1p-11 : num_sums * 0x1p-22;
  const double bound = std::abs(expected.value) * 0x1p-8 + expected.magnitude * sum_error;
  squared_error += error * error;
  squared_value += expected.value * expected.value;
  if (error <= bound || !first_bad.empty()) return;  // NaN is not within the bound
  char text[160];
  std::snprintf(text, sizeof(text), ": %g instead of %g (off by %g, at most %g)",
                static_cast<double>(to_float(output)), expected.value, error, bound);
  first_bad = where + text;
}

}  // namespace switchyard::reference
