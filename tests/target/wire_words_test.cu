// The CUDA half of wire_words_test.cpp: the same source, compiled by nvcc.
#include "wire_words_test.cpp"
