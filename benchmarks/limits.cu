// The CUDA half of limits.cpp: the same source, compiled by nvcc.
#include "limits.cpp"
