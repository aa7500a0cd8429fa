// Dispatch of the MX formats, for the target this file is compiled for.
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

FormatKernels mx_kernels(TokenFormatKind format) {
  switch (format) {
    case TokenFormatKind::kMXFP8:
      return format_kernels<TokenFormatKind::kMXFP8, MXTokenFormat<e4m3>>();
    case TokenFormatKind::kMXFP8E5M2:
      return format_kernels<TokenFormatKind::kMXFP8E5M2, MXTokenFormat<e5m2>>();
    case TokenFormatKind::kMXFP6:
      return format_kernels<TokenFormatKind::kMXFP6, MXTokenFormat<e2m3>>();
    case TokenFormatKind::kMXFP6E3M2:
      return format_kernels<TokenFormatKind::kMXFP6E3M2, MXTokenFormat<e3m2>>();
    default:
      return format_kernels<TokenFormatKind::kMXFP4, MXTokenFormat<e2m1>>();
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
