#include "wired_combine_kernels.cpp"
