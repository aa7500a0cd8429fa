// The tables of kernels, each made by a file that is compiled once for every target.
#pragma once

#include "switchyard/detail/launch/attention_kernels.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"
#include "switchyard/detail/launch/matmul_kernels.hpp"

namespace switchyard {

// Defined for kHost, and in builds with CUDA for kCuda.
template <Target kTarget>
const KernelTable& kernel_table_of();
template <Target kTarget>
const AttentionKernels& attention_kernels_of();
template <Target kTarget, MatmulEpilogue kEpilogue>
const MatmulKernels& matmul_kernels_of();

const ProtocolKernels& cuda_traced_kernels();  // only in builds with CUDA

}  // namespace switchyard
