// The CUDA half of attention_128.cpp: the same source, compiled by nvcc.
#include "attention_128.cpp"
