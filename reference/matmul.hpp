// What a grouped matmul means, in plain loops: each output is a sum over K, in double.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "switchyard/detail/base/bf16.hpp"

namespace switchyard::reference {

// One output: `row` is [K], `weights` the [K] of one column.
struct MatmulValue {
  double value = 0;
  double magnitude = 0;  // the sum of what the products are without their signs
};
MatmulValue multiply(std::span<const bf16> row, std::span<const bf16> weights);

struct MatmulDifference {
  double squared_error = 0, squared_value = 0;
  std::string first_bad;  // empty: none beyond the bound

  double relative_error() const;
  // An error counts as bad beyond the rounding to bf16 and that of fp32 sums, one per 16 products, each of
  // which a matrix unit may cut off instead of rounding. `where` names the output.
  void add(std::span<const bf16> row, std::span<const bf16> weights, bf16 output, const std::string& where);
};

}  // namespace switchyard::reference
