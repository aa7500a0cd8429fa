// The CUDA half of kernel_table.cpp: the same source, compiled by nvcc.
#include "kernel_table.cpp"
