// The CUDA half of fp8_combine_kernels.cpp: the same source, compiled by nvcc.
#include "fp8_combine_kernels.cpp"
