// The CUDA half of token_format_test.cpp: the same source, compiled by nvcc.
#include "token_format_test.cpp"
