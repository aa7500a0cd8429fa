#include "matmul_arguments.hpp"

#include <string>

namespace switchyard::python {
namespace {

std::string ceil_text(const char* dimension, int unit) {
  return "ceil(" + std::string(dimension) + " / " + std::to_string(unit) + ")";
}

// "(num_experts, columns, inner)".
std::string shape_text(const WeightNames& names, const std::string& columns, const std::string& inner) {
  return "(" + std::string(names.experts) + ", " + columns + ", " + inner + ")";
}

void add_rows(Arguments& arguments, const WeightShape& shape, const WeightNames& names,
              const GivenWeights& given, Weights& weights) {
  weights.weights = arguments.pointer<const void>(given.weights, names.weights,
                                                  {shape.element == MatmulElement::kFP8 ? kE4M3 : kBFloat16,
                                                   {shape.experts, shape.columns, shape.inner},
                                                   shape_text(names, names.columns, names.inner).c_str()});
  weights.scales = arguments.pointer<const float>(
      given.scales, names.scales,
      {kFloat32,
       {shape.experts, ceil_of(shape.columns, 128), ceil_of(shape.inner, 128)},
       shape_text(names, ceil_text(names.columns, 128), ceil_text(names.inner, 128)).c_str()});
}

void add_codes(Arguments& arguments, const WeightShape& shape, const WeightNames& names,
               const GivenWeights& given, Weights& weights) {
  const bool is_mxfp8 = shape.format == WeightFormat::kMXFP8, is_nvfp4 = shape.format == WeightFormat::kNVFP4;
  const int group_size = scale_group_size(shape.format);
  const std::string inner = names.inner;
  weights.weights = arguments.pointer<const void>(
      given.weights, names.weights,
      {kUInt8,
       {shape.experts, shape.columns, shape.inner * code_bits_of(shape.format) / 8},
       shape_text(names, names.columns, is_mxfp8 ? inner : inner + " / 2").c_str(),
       Access::kRead,
       is_mxfp8 ? &kE4M3 : nullptr});
  weights.scales = arguments.pointer<const void>(
      given.scales, names.scales,
      {is_nvfp4 ? kE4M3 : kE8M0,
       {shape.experts, shape.columns, shape.inner / group_size},
       shape_text(names, names.columns, inner + " / " + std::to_string(group_size)).c_str(),
       Access::kRead,
       &kUInt8});
}

}  // namespace

Weights weights_of(Arguments& arguments, const WeightShape& shape, const WeightNames& names,
                   const GivenWeights& given) {
  Weights weights;
  if (is_coded(shape.format))
    add_codes(arguments, shape, names, given, weights);
  else
    add_rows(arguments, shape, names, given, weights);
  const std::string of_experts = "(" + std::string(names.experts) + ",)",
                    of_columns = "(" + std::string(names.experts) + ", " + names.columns + ")";
  weights.tensor_scales = arguments.pointer<const float>(given.tensor_scales, names.tensor_scales,
                                                         {kFloat32, {shape.experts}, of_experts.c_str()});
  weights.bias = arguments.pointer<const float>(
      given.bias, names.bias, {kFloat32, {shape.experts, shape.columns}, of_columns.c_str()});
  return weights;
}

}  // namespace switchyard::python
