// The tiled matmul kernels of one target that take rows in any token format, and decode them to bf16.
#pragma once

#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard {

using DecodingMatmulKernel = MatmulKernelWith<RowCodes>;

// Null: there is none of that tuning. Without an activation the epilogue is affine.
const DecodingMatmulKernel* decoding_matmul_kernel(Target target, MatmulEpilogue epilogue,
                                                   const MatmulTuning& tuning);

// Defined for kHost, and in builds with CUDA for kCuda.
template <Target kTarget>
const DecodingMatmulKernel* decoding_matmul_kernel_of(MatmulEpilogue epilogue, const MatmulTuning& tuning);

}  // namespace switchyard
