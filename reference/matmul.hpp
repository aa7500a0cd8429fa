// What a grouped matmul means, in plain loops: each output is a sum over K, in double.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "switchyard/types/bf16.hpp"
#include "switchyard/types/matmul_epilogue.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard::reference {

// One output: `row` is [K], `weights` the [K] of one column.
struct MatmulValue {
  double value = 0;
  double magnitude = 0;  // the sum of what the products are without their signs
};
MatmulValue multiply(std::span<const float> row, std::span<const float> weights);

// Weights as numbers: `codes` are packed as they lie in memory, `scales` are those of as many of them.
std::vector<float> decode_weights(WeightFormat format, std::span<const uint8_t> codes,
                                  std::span<const uint8_t> scales, float tensor_scale);

// The most by which the sum of K products may be off, as a part of its magnitude: of bf16 in fp32, a rounding
// per 16 products, each of which a matrix unit may cut off instead; of fp8 the matrix unit keeps about 14
// bits of what it adds.
double sum_error(MatmulElement element, size_t inner);

// gate and up through an activation, by its definition. What the two may be off by comes out as `error`.
struct GatedValue {
  double value = 0;
  double error = 0;
};
GatedValue activate(Activation activation, double gate, double gate_error, double up, double up_error);

struct MatmulDifference {
  double squared_error = 0, squared_value = 0;
  std::string first_bad;  // empty: none beyond the bound

  double relative_error() const;
  // An error counts as bad beyond the rounding to bf16 and that of the sums. `where` names the output.
  void add(MatmulElement element, std::span<const float> row, std::span<const float> weights, bf16 output,
           const std::string& where);
  // The same for any output, with a bound of its own.
  void add(double output, double expected, double bound, const std::string& where);
};

}  // namespace switchyard::reference
