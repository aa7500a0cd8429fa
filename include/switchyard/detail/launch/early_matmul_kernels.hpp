// The tiled matmul kernels of one target that start while rows are on their way: those of a layer's gate_up
// in bf16. (In fp8 the scales of rows come behind them.)
#pragma once

#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard {

struct RowReadiness;

struct EarlyMatmulKernel {
  MatmulTuning tuning;
  // The last groups are the rank's experts.
  Status (*launch)(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                   const MatmulSettings& settings, const RowReadiness& readiness);
  Status (*load)();  // onto the current device
};

constexpr bool has_early_matmul_kernel(const MatmulTuning& tuning) {
  return tuning.element == MatmulElement::kBF16 && !is_coded(tuning.weights) &&
         has_matmul_kernel(MatmulEpilogue::kGated, tuning);
}

// Null: there is none of that tuning.
const EarlyMatmulKernel* early_matmul_kernel(Target target, const MatmulTuning& tuning);

// Defined for kHost, and in builds with CUDA for kCuda.
template <Target kTarget>
const EarlyMatmulKernel* early_matmul_kernel_of(const MatmulTuning& tuning);

}  // namespace switchyard
