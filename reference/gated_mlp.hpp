// What an expert of a layer with fused matmuls means, in plain loops: sums in double, and only what lies
// between the two products is rounded.
#pragma once

#include <functional>
#include <vector>

#include "reference/matmul.hpp"

namespace switchyard::reference {

struct GatedMlp {
  Activation activation = Activation::kSiLU;
  GateLayout gate_layout = GateLayout::kStacked;
  MatmulElement element = MatmulElement::kBF16;  // what lies between the products is rounded to
  size_t hidden = 0;
  size_t width = 0;
  // The weights of a column: [hidden] of 2 * width columns, and [width] of `hidden` columns.
  std::function<std::vector<float>(size_t column)> gate_up, down;
  std::vector<float> gate_up_bias = {}, down_bias = {};  // of a column each, or empty

  // [hidden]
  std::vector<double> output(const std::vector<float>& token) const;

 private:
  std::vector<float> activated(const std::vector<float>& token) const;
};

// e4m3 with a scale for each 128; the last of these groups may have fewer.
std::vector<float> through_fp8(std::vector<float> values);

// The length of the difference of two vectors, as a part of the second one's.
double relative_distance(const std::vector<double>& values, const std::vector<double>& expected);

}  // namespace switchyard::reference
