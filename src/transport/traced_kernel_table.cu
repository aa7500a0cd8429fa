// kernel_table.cu once more, with kernels that can trace.
#define SWITCHYARD_TRACED
#include "kernel_table.cpp"
