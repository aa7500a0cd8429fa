// The CUDA half of recode_kernels.cpp: the same source, compiled by nvcc.
#include "recode_kernels.cpp"
