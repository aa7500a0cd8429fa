// The CUDA half of these: the same sources, compiled by nvcc, which reads their headers once.
#include "attention_128.cpp"
#include "attention_256.cpp"
#include "attention_64.cpp"
