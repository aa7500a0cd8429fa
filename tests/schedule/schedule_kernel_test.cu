// The CUDA half of schedule_kernel_test.cpp: the same source, compiled by nvcc.
#include "schedule_kernel_test.cpp"
