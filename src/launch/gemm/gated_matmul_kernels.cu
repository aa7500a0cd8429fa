// The CUDA half of gated_matmul_kernels.cpp: the same source, compiled by nvcc.
#include "gated_matmul_kernels.cpp"
