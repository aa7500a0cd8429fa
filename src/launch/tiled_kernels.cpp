// Dispatch of the formats with tiled scales, for the target this file is compiled for.
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

FormatKernels tiled_kernels(TokenFormatKind format) {
  switch (format) {
    case TokenFormatKind::kNVFP4ByExpert:
      return format_kernels<TokenFormatKind::kNVFP4ByExpert,
                            NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>>>();
    case TokenFormatKind::kMXFP8Tiled:
      return format_kernels<TokenFormatKind::kMXFP8Tiled, NVBlockScaledTokenFormat<TiledMX<e4m3>>>();
    case TokenFormatKind::kMXFP4Tiled:
      return format_kernels<TokenFormatKind::kMXFP4Tiled, NVBlockScaledTokenFormat<TiledMX<e2m1>>>();
    default:
      return format_kernels<TokenFormatKind::kNVFP4, NVBlockScaledTokenFormat<NVFP4<OneInputScale>>>();
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
