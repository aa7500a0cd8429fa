// Dispatch of the formats with tiled scales, for the target this file is compiled for.
#include "make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

FormatKernels tiled_kernels(TokenFormatKind format) {
  switch (format) {
    case TokenFormatKind::kNVFP4ByExpert:
      return kFormatKernels<NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>>>;
    case TokenFormatKind::kMXFP8Tiled:
      return kFormatKernels<NVBlockScaledTokenFormat<TiledMX<e4m3>>>;
    case TokenFormatKind::kMXFP4Tiled:
      return kFormatKernels<NVBlockScaledTokenFormat<TiledMX<e2m1>>>;
    default:
      return kFormatKernels<NVBlockScaledTokenFormat<NVFP4<OneInputScale>>>;
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
