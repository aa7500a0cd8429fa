// The CUDA half of nvfp4_kernels.cpp: the same source, compiled by nvcc.
#include "nvfp4_kernels.cpp"
