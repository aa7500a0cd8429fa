// The CUDA half of these tests: the same sources, compiled by nvcc, which reads their headers once.
#include "fixed_shape_test.cpp"
#include "own_kernels_test.cpp"
