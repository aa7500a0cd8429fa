// The attention kernels of each head dimension are compiled in a file of their own, side by side, and those
// that adjust scores in another.
#pragma once

#include "switchyard/detail/launch/make_attention_kernel.hpp"

#if defined(__CUDACC__)
#define SWITCHYARD_ATTENTION_KERNELS(dim) cuda_attention_kernels_##dim
#else
#define SWITCHYARD_ATTENTION_KERNELS(dim) host_attention_kernels_##dim
#endif

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(64)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(adjusted_64)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(128)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(adjusted_128)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(256)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(adjusted_256)();
AttentionKernel SWITCHYARD_ATTENTION_KERNELS(mla)();
AttentionKernel SWITCHYARD_ATTENTION_KERNELS(fp8)(ScoreKind scores, int head_dim);

}  // namespace switchyard
