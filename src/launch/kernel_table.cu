// The CUDA half of these: the same sources, compiled by nvcc, which reads their headers once.
#include "fp8_combine_kernels.cpp"
#include "kernel_table.cpp"
#include "recode_kernels.cpp"
