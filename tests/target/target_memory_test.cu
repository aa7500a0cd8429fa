// The CUDA half of target_memory_test.cpp: the same source, compiled by nvcc.
#include "target_memory_test.cpp"
