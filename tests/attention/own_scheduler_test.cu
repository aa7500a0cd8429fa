// The CUDA half of own_scheduler_test.cpp: the same source, compiled by nvcc.
#include "own_scheduler_test.cpp"
