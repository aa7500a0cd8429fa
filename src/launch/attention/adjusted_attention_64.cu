// The CUDA half of these: the same sources, compiled by nvcc, which reads their headers once.
#include "adjusted_attention_128.cpp"
#include "adjusted_attention_256.cpp"
#include "adjusted_attention_64.cpp"
