// The CUDA half of target_test.cpp: the same source, compiled by nvcc.
#include "target_test.cpp"
