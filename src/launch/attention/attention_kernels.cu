// The CUDA half of these: the same sources, compiled by nvcc, which reads their headers once.
#include "attention_kernels.cpp"
#include "fp8_attention.cpp"
#include "mla_attention.cpp"
