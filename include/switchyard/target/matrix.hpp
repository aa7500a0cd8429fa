// Picks the words of tile kernels for the target this file is compiled for.
#pragma once

#include "switchyard/target/target.hpp"

#if defined(__CUDACC__)
#include "switchyard/target/cuda_matrix.cuh"
#else
#include "switchyard/target/host_matrix.hpp"
#endif
