// The CUDA half of target_memory_test.cpp and target_copy_test.cpp: the same source, compiled by nvcc, once for both.
#include "target_copy_test.cpp"
#include "target_memory_test.cpp"
