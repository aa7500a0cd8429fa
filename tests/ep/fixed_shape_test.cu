// The CUDA half of fixed_shape_test.cpp: the same source, compiled by nvcc.
#include "fixed_shape_test.cpp"
