// The CUDA half of trace_test.cpp: the same source, compiled by nvcc.
#include "trace_test.cpp"
