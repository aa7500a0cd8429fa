// Dispatch of the MX formats, for the target this file is compiled for.
#include "make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

FormatKernels mx_kernels(TokenFormatKind format) {
  return format == TokenFormatKind::kMXFP8   ? format_kernels<TokenFormatKind::kMXFP8, MXTokenFormat<e4m3>>()
         : format == TokenFormatKind::kMXFP6 ? format_kernels<TokenFormatKind::kMXFP6, MXTokenFormat<e2m3>>()
                                             : format_kernels<TokenFormatKind::kMXFP4, MXTokenFormat<e2m1>>();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
