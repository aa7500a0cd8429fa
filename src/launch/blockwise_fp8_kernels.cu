// The CUDA half of blockwise_fp8_kernels.cpp: the same source, compiled by nvcc.
#include "blockwise_fp8_kernels.cpp"
