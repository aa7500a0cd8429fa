// The CUDA half of trace_test.cpp: the same source, compiled by nvcc, with kernels that can trace.
#define SWITCHYARD_TRACED
#include "trace_test.cpp"
