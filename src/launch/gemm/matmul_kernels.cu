// The CUDA half of these: the same sources, compiled by nvcc, which reads their headers once.
#include "affine_matmul_kernels.cpp"
#include "decoding_matmul_kernels.cpp"
#include "early_matmul_kernels.cpp"
#include "gated_matmul_kernels.cpp"
#include "matmul_kernels.cpp"
