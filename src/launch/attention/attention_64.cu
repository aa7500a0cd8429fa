// The CUDA half of attention_64.cpp: the same source, compiled by nvcc.
#include "attention_64.cpp"
