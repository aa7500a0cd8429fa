// The three decorations that let one source compile for the CPU and the GPU.
#pragma once

#if defined(__CUDACC__)
#define SWITCHYARD_HD __host__ __device__
#else
#define SWITCHYARD_HD
#endif
