// The CUDA half of adjusted_attention_64.cpp: the same source, compiled by nvcc.
#include "adjusted_attention_64.cpp"
