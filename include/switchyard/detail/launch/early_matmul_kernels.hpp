// The tiled matmul kernels of one target that overlap with the exchange of rows: a layer's gate_up, which
// starts while rows are on their way, and its down, of whose rows combine takes each expert's when they are
// complete.
#pragma once

#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard {

struct RowCompletion;
struct RowReadiness;

// The last groups are the rank's experts.
using EarlyMatmulKernel = MatmulKernelWith<RowReadiness>;
using TellingMatmulKernel = MatmulKernelWith<RowCompletion>;

// Of gate_up in a layer, whose output has the element of its rows.
constexpr MatmulEpilogue early_epilogue(MatmulElement element) {
  return element == MatmulElement::kFP8 ? MatmulEpilogue::kGatedFP8 : MatmulEpilogue::kGated;
}
constexpr bool has_early_matmul_kernel(const MatmulTuning& tuning) {
  return !is_coded(tuning.weights) && has_matmul_kernel(early_epilogue(tuning.element), tuning);
}
constexpr bool has_telling_matmul_kernel(const MatmulTuning& tuning) {
  return !is_coded(tuning.weights) && has_matmul_kernel(MatmulEpilogue::kAffine, tuning);
}

// Null: there is none of that tuning.
const EarlyMatmulKernel* early_matmul_kernel(Target target, const MatmulTuning& tuning);
const TellingMatmulKernel* telling_matmul_kernel(Target target, const MatmulTuning& tuning);

// Defined for kHost, and in builds with CUDA for kCuda.
template <Target kTarget>
const EarlyMatmulKernel* early_matmul_kernel_of(const MatmulTuning& tuning);
template <Target kTarget>
const TellingMatmulKernel* telling_matmul_kernel_of(const MatmulTuning& tuning);

}  // namespace switchyard
