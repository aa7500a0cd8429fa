// What GroupedMatmul and MoeLayer have in common: their enumerators as strings, and the weights of experts.
#pragma once

#include "options.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "tensor.hpp"

namespace switchyard::python {

inline constexpr Choice<Activation> kActivations[] = {{"none", Activation::kNone},
                                                      {"silu", Activation::kSiLU},
                                                      {"gelu", Activation::kGELU},
                                                      {"clamped-swiglu", Activation::kClampedSwiGLU}};
inline constexpr Choice<GateLayout> kGateLayouts[] = {{"stacked", GateLayout::kStacked},
                                                      {"interleaved", GateLayout::kInterleaved}};
inline constexpr Choice<WeightFormat> kWeightFormats[] = {{"as-rows", WeightFormat::kAsRows},
                                                          {"mxfp4", WeightFormat::kMXFP4},
                                                          {"nvfp4", WeightFormat::kNVFP4},
                                                          {"mxfp8", WeightFormat::kMXFP8}};

inline int64_t ceil_of(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

struct WeightShape {
  MatmulElement element;
  WeightFormat format;
  int64_t experts, columns, inner;
};
// As errors call the arrays and their dimensions.
struct WeightNames {
  const char *weights, *scales, *tensor_scales, *bias;
  const char *experts, *columns, *inner;
};
struct GivenWeights {
  nb::handle weights, scales, tensor_scales, bias;
};
struct Weights {
  const void* weights = nullptr;
  const void* scales = nullptr;
  const float* tensor_scales = nullptr;
  const float* bias = nullptr;
};
// The weights, as rows or as codes, and what goes with them; None is null.
Weights weights_of(Arguments& arguments, const WeightShape& shape, const WeightNames& names,
                   const GivenWeights& given);

}  // namespace switchyard::python
