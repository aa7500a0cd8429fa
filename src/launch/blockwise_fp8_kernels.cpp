// Dispatch of blockwise fp8, for the target this file is compiled for.
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

FormatKernels blockwise_fp8_kernels(TokenFormatKind format) {
  return format == TokenFormatKind::kFP8
             ? format_kernels<TokenFormatKind::kFP8, BlockwiseFP8TokenFormat<e4m3>>()
             : format_kernels<TokenFormatKind::kFP8E5M2, BlockwiseFP8TokenFormat<e5m2>>();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
