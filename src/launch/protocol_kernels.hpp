// The kernels of both protocols over all token formats, for the target this file is compiled for. They are
// instantiated by the files that this one links with.
#pragma once

#include "format_kernels.hpp"
#include "switchyard/detail/format/visit_kind.hpp"
#include "switchyard/detail/launch/make_ep_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

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
template <FixedShape Fixed>
const DispatchKernels* linked_dispatch(TokenFormatKind format) {
  return kernels_of<Fixed>(format).linked;
}

template <EpProtocol P>
const CombineKernels* wired_combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &fp8_combine_kernels<P, WiredShape>()
                                       : &wired_bf16_combine_kernels<P>();
}

inline const CombineKernels* wired_linked_combine(CombineFormat format) {
  return format == CombineFormat::kFP8 ? &linked_combine_kernels<WiredShape, FP8CombineRows>()
                                       : &linked_combine_kernels<WiredShape, BF16CombineRows>();
}

// Ranks that skip the all-to-all are near each other: all_reduce() has no wire.
inline constexpr ProtocolKernels kWiredKernels = {
    .slotted = {&slotted_dispatch<WiredShape>, &wired_combine<Slotted>, kAllReduce<RunTimeShape>},
    .direct = {&direct_dispatch<WiredShape>, &wired_combine<Direct>, kAllReduce<RunTimeShape>,
               &linked_dispatch<WiredShape>, &wired_linked_combine}};

}  // namespace switchyard::inline SWITCHYARD_TARGET
