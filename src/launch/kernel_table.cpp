// The kernels the library ships, for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "format_kernels.hpp"
#include "kernel_tables.hpp"
#include "make_kernel_table.hpp"
#include "switchyard/detail/format/visit_kind.hpp"

namespace switchyard {
namespace {

template <FixedShape Fixed>
FormatKernels kernels_of(TokenFormatKind format) {
  return visit_kind(
      format, [&]<TokenFormatKind kKind>() { return kernels_of_kind<kKind, Fixed>(); },
      [] { return FormatKernels{}; });
}
template <FixedShape Fixed>
const DispatchKernels* slotted_dispatch(TokenFormatKind format) {
  return kernels_of<Fixed>(format).slotted;
}
template <FixedShape Fixed>
const DispatchKernels* direct_dispatch(TokenFormatKind format) {
  return kernels_of<Fixed>(format).direct;
}

template <EpProtocol P>
const CombineKernels* combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &fp8_combine_kernels<P, RunTimeShape>()
                                       : bf16_combine_kernels<P, RunTimeShape>(format);
}
template <EpProtocol P>
const CombineKernels* wired_combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &fp8_combine_kernels<P, WiredShape>()
                                       : &wired_bf16_combine_kernels<P>();
}

constexpr KernelTable this_table() {
  // Ranks that skip the all-to-all are near each other: all_reduce() has no wire.
  constexpr AllReduceKernel kReduce = kAllReduce<RunTimeShape>;
  KernelTable table = make_kernel_table({&slotted_dispatch<RunTimeShape>, &combine<Slotted>, kReduce},
                                        {&direct_dispatch<RunTimeShape>, &combine<Direct>, kReduce});
  table.wired = {{&slotted_dispatch<WiredShape>, &wired_combine<Slotted>, kReduce},
                 {&direct_dispatch<WiredShape>, &wired_combine<Direct>, kReduce}};
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
