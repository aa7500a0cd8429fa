// The CUDA half of attention_256.cpp: the same source, compiled by nvcc.
#include "attention_256.cpp"
