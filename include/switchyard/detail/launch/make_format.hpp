// The token formats of the library over their tensors: an overload for each.
#pragma once

#include <type_traits>

#include "switchyard/detail/format/bf16.hpp"
#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/detail/format/format_kind.hpp"
#include "switchyard/detail/format/mx.hpp"
#include "switchyard/detail/format/nv_block_scaled.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline BF16TokenFormat make_format(std::type_identity<BF16TokenFormat>, int hidden,
                                   const FormatTensors& tensors) {
  return {hidden, reinterpret_cast<bf16*>(tensors.rows)};
}

template <typename Element>
BlockwiseFP8TokenFormat<Element> make_format(std::type_identity<BlockwiseFP8TokenFormat<Element>>, int hidden,
                                             const FormatTensors& tensors) {
  return {hidden, tensors.max_rows, reinterpret_cast<uint8_t*>(tensors.rows),
          reinterpret_cast<float*>(tensors.scales)};
}

template <typename Element>
MXTokenFormat<Element> make_format(std::type_identity<MXTokenFormat<Element>>, int hidden,
                                   const FormatTensors& tensors) {
  return {hidden, reinterpret_cast<uint8_t*>(tensors.rows), reinterpret_cast<e8m0*>(tensors.scales)};
}

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

}  // namespace switchyard::inline SWITCHYARD_TARGET
