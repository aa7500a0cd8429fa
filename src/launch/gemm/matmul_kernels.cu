// The CUDA half of matmul_kernels.cpp: the same source, compiled by nvcc.
#include "matmul_kernels.cpp"
