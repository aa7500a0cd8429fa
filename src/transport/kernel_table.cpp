// The kernels the library ships, for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu and traced_kernel_table.cu for CUDA.
#include "switchyard/transport/kernel_table.hpp"

#include "make_kernel_table.hpp"

namespace switchyard {
namespace {

constexpr KernelTable kTable = make_kernel_table<RunTimeShape, RunTimeShape>();

}  // namespace

#if defined(SWITCHYARD_TRACED)
const KernelTable& cuda_traced_kernel_table() { return kTable; }
#elif defined(__CUDACC__)
const KernelTable& cuda_kernel_table() { return kTable; }
#else
const KernelTable& host_kernel_table() { return kTable; }
#endif

}  // namespace switchyard
