// The tiled matmul kernels of one target that overlap with the exchange of rows: a layer's gate_up in bf16,
// which starts while rows are on their way (in fp8 the scales of rows come behind them), and its down, of
// whose rows combine takes each expert's when they are complete.
#pragma once

#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard {

struct RowCompletion;
struct RowReadiness;

// The last groups are the rank's experts.
using EarlyMatmulKernel = MatmulKernelWith<RowReadiness>;
using TellingMatmulKernel = MatmulKernelWith<RowCompletion>;

constexpr bool has_early_matmul_kernel(const MatmulTuning& tuning) {
  return tuning.element == MatmulElement::kBF16 && !is_coded(tuning.weights) &&
         has_matmul_kernel(MatmulEpilogue::kGated, tuning);
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
