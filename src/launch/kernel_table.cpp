// The kernels the library ships, for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "format_kernels.hpp"
#include "kernel_tables.hpp"
#include "make_kernel_table.hpp"
#include "switchyard/detail/format/visit_kind.hpp"

namespace switchyard {
namespace {

FormatKernels kernels_of(TokenFormatKind format) {
  return visit_kind(
      format, [&]<TokenFormatKind kKind>() { return kernels_of_kind<kKind>(); },
      [] { return FormatKernels{}; });
}
const DispatchKernels* slotted_dispatch(TokenFormatKind format) { return kernels_of(format).slotted; }
const DispatchKernels* direct_dispatch(TokenFormatKind format) { return kernels_of(format).direct; }

const CombineKernels* slotted_combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &slotted_fp8_combine_kernels()
                                       : bf16_combine_kernels<Slotted, RunTimeShape>(format);
}
const CombineKernels* direct_combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &direct_fp8_combine_kernels()
                                       : bf16_combine_kernels<Direct, RunTimeShape>(format);
}

constexpr KernelTable this_table() {
  KernelTable table = make_kernel_table({&slotted_dispatch, &slotted_combine, kAllReduce<RunTimeShape>},
                                        {&direct_dispatch, &direct_combine, kAllReduce<RunTimeShape>});
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
