// The kernels the library ships, for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "kernel_tables.hpp"
#include "make_kernel_table.hpp"
#include "protocol_kernels.hpp"

namespace switchyard {
namespace {

template <EpProtocol P>
const CombineKernels* combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &fp8_combine_kernels<P, RunTimeShape>()
                                       : bf16_combine_kernels<P, RunTimeShape>(format);
}

const CombineKernels* combine_of_sums(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &linked_combine_kernels<RunTimeShape, FP8CombineRows>()
                                       : bf16_linked_combine_kernels<RunTimeShape>(format);
}

constexpr KernelTable this_table() {
  constexpr AllReduceKernel kReduce = kAllReduce<RunTimeShape>;
  KernelTable table =
      make_kernel_table({&slotted_dispatch<RunTimeShape>, &combine<Slotted>, kReduce},
                        {&direct_dispatch<RunTimeShape>, &combine<Direct>, kReduce,
                         &linked_dispatch<RunTimeShape>, &combine_of_sums, kEarlyCombine<RunTimeShape>});
  table.wired = kWiredKernels;
#if defined(__CUDACC__)
  table.traced = &cuda_traced_kernels;
#endif
  return table;
}
constexpr KernelTable kTable = this_table();

}  // namespace

template <>
const KernelTable& kernel_table_of<kThisTarget>() {
  return kTable;
}

}  // namespace switchyard
