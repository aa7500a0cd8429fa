// Dispatch of the formats with tiled scales, for the target this file is compiled for.
#include "make_dispatch_kernels.hpp"
#include "switchyard/format/nv_block_scaled.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline void make_scheme(const FormatTensors& tensors, NVFP4<OneInputScale>& scheme) {
  scheme = {{tensors.tensor_scale}};
}
inline void make_scheme(const FormatTensors& tensors, NVFP4<ExpertInputScales>& scheme) {
  scheme = {{tensors.expert_scales, tensors.tensor_scale}};
}
template <typename Element>
void make_scheme(const FormatTensors&, TiledMX<Element>&) {}

template <typename Scheme>
NVBlockScaledTokenFormat<Scheme> make_format(std::type_identity<NVBlockScaledTokenFormat<Scheme>>, int hidden,
                                             const FormatTensors& tensors) {
  NVBlockScaledTokenFormat<Scheme> format{hidden,
                                          {},
                                          reinterpret_cast<uint8_t*>(tensors.rows),
                                          reinterpret_cast<uint8_t*>(tensors.scales),
                                          tensors.scale_row_offsets};
  make_scheme(tensors, format.scheme);
  return format;
}

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
