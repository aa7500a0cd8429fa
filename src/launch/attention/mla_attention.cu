// The CUDA half of mla_attention.cpp: the same source, compiled by nvcc.
#include "mla_attention.cpp"
