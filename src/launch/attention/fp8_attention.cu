// The CUDA half of fp8_attention.cpp: the same source, compiled by nvcc.
#include "fp8_attention.cpp"
