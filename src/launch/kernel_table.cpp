// The kernels the library ships, for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "kernel_tables.hpp"
#include "make_kernel_table.hpp"

namespace switchyard {
namespace {

FormatKernels kernels_of(TokenFormatKind format) {
  switch (format) {
    case TokenFormatKind::kBF16:
      break;
    case TokenFormatKind::kFP8:
    case TokenFormatKind::kFP8E5M2:
      return blockwise_fp8_kernels(format);
    case TokenFormatKind::kMXFP8:
    case TokenFormatKind::kMXFP8E5M2:
    case TokenFormatKind::kMXFP6:
    case TokenFormatKind::kMXFP6E3M2:
    case TokenFormatKind::kMXFP4:
      return mx_kernels(format);
    case TokenFormatKind::kNVFP4:
    case TokenFormatKind::kNVFP4ByExpert:
    case TokenFormatKind::kMXFP8Tiled:
    case TokenFormatKind::kMXFP4Tiled:
      return tiled_kernels(format);
  }
  return format_kernels<TokenFormatKind::kBF16, BF16TokenFormat>();
}

constexpr KernelTable all_formats(KernelTable table) {
  table.slotted.dispatch = [](TokenFormatKind format) { return kernels_of(format).slotted; };
  table.direct.dispatch = [](TokenFormatKind format) { return kernels_of(format).direct; };
  table.slotted.combine = [](CombineFormat format) {
    return format == CombineFormat::kFP8 ? &slotted_fp8_combine_kernels()
                                         : bf16_combine_kernels<Slotted, RunTimeShape>(format);
  };
  table.direct.combine = [](CombineFormat format) {
    return format == CombineFormat::kFP8 ? &direct_fp8_combine_kernels()
                                         : bf16_combine_kernels<Direct, RunTimeShape>(format);
  };
  return table;
}
constexpr KernelTable this_table() {
  KernelTable table = all_formats(make_kernel_table<RunTimeShape, RunTimeShape>());
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
