// The CUDA half of own_kernels_test.cpp: the same source, compiled by nvcc.
#include "own_kernels_test.cpp"
