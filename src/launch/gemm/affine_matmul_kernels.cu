// The CUDA half of affine_matmul_kernels.cpp: the same source, compiled by nvcc.
#include "affine_matmul_kernels.cpp"
