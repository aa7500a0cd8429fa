// The CUDA half of mx_kernels.cpp: the same source, compiled by nvcc.
#include "mx_kernels.cpp"
