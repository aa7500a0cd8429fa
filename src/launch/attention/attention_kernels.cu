// The CUDA half of attention_kernels.cpp: the same source, compiled by nvcc.
#include "attention_kernels.cpp"
