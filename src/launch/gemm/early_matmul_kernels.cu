// The CUDA half of it: the same source, compiled by nvcc.
#include "early_matmul_kernels.cpp"
