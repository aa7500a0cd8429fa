// What a grouped matmul means, in plain loops: each output is a sum over K, in double.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "switchyard/bf16.hpp"
#include "switchyard/matmul_tuning.hpp"

namespace switchyard::reference {

// One output: `row` is [K], `weights` the [K] of one column.
struct MatmulValue {
  double value = 0;
  double magnitude = 0;  // the sum of what the products are without their signs
};
MatmulValue multiply(std::span<const float> row, std::span<const float> weights);

struct MatmulDifference {
  double squared_error = 0, squared_value = 0;
  std::string first_bad;  // empty: none beyond the bound

  double relative_error() const;
  // An error counts as bad beyond the rounding to bf16 and that of the sums: of bf16 in fp32, one per 16
  // products, each of which a matrix unit may cut off instead of rounding; of fp8 the matrix unit keeps about
  // 14 bits of what it adds. `where` names the output.
  void add(MatmulElement element, std::span<const float> row, std::span<const float> weights, bf16 output,
           const std::string& where);
};

}  // namespace switchyard::reference
