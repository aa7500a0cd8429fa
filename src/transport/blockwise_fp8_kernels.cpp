// Dispatch of blockwise fp8, for the target this file is compiled for.
#include "make_dispatch_kernels.hpp"
#include "switchyard/format/blockwise_fp8.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Element>
BlockwiseFP8TokenFormat<Element> make_format(std::type_identity<BlockwiseFP8TokenFormat<Element>>, int hidden,
                                             const FormatTensors& tensors) {
  return {hidden, tensors.max_rows, reinterpret_cast<uint8_t*>(tensors.rows),
          reinterpret_cast<float*>(tensors.scales)};
}

FormatKernels blockwise_fp8_kernels(TokenFormatKind format) {
  return format == TokenFormatKind::kFP8
             ? format_kernels<TokenFormatKind::kFP8, BlockwiseFP8TokenFormat<e4m3>>()
             : format_kernels<TokenFormatKind::kFP8E5M2, BlockwiseFP8TokenFormat<e5m2>>();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
