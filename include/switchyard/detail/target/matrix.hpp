// Includes the words of tile kernels for the target that this file is compiled for.
#pragma once

#include "switchyard/detail/target/target.hpp"

#if defined(__CUDACC__)
#include "switchyard/detail/target/cuda_matrix.cuh"
#else
#include "switchyard/detail/target/host_matrix.hpp"
#endif
