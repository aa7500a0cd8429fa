// The CUDA half of tiled_kernels.cpp: the same source, compiled by nvcc.
#include "tiled_kernels.cpp"
