// The CUDA half of target_test.cpp and target_numbers_test.cpp: the same source, compiled by nvcc, once for both.
#include "target_numbers_test.cpp"
#include "target_test.cpp"
