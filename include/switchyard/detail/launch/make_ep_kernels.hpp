// A protocol's kernels of bf16 and no other format, for the target this file is compiled for.
#pragma once

#include "switchyard/detail/launch/launch_all_reduce.hpp"
#include "switchyard/detail/launch/make_combine_kernels.hpp"
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <EpProtocol P, FixedShape Fixed>
const DispatchKernels* bf16_dispatch_kernels(TokenFormatKind format) {
  return format == TokenFormatKind::kBF16 ? &kDispatchKernels<P, Fixed, BF16TokenFormat> : nullptr;
}
template <EpProtocol P, FixedShape Fixed>
const CombineKernels* bf16_combine_kernels(CombineFormat format) {
  return format == CombineFormat::kBF16 ? &kCombineKernels<P, Fixed, BF16CombineRows> : nullptr;
}
template <FixedShape Fixed>
const DispatchKernels* bf16_linked_dispatch_kernels(TokenFormatKind format) {
  return format == TokenFormatKind::kBF16 ? &kLinkedDispatchKernels<Fixed, BF16TokenFormat> : nullptr;
}
template <FixedShape Fixed>
const CombineKernels* bf16_linked_combine_kernels(CombineFormat format) {
  return format == CombineFormat::kBF16 ? &kCombineKernels<Direct, Linked<Fixed>, BF16CombineRows> : nullptr;
}
template <EpProtocol P, FixedShape Fixed>
constexpr EpKernels make_bf16_kernels() {
  EpKernels kernels{&bf16_dispatch_kernels<P, Fixed>, &bf16_combine_kernels<P, Fixed>, kAllReduce<Fixed>};
  if constexpr (std::is_same_v<P, Direct>) {
    kernels.linked_dispatch = &bf16_linked_dispatch_kernels<Fixed>;
    kernels.linked_combine = &bf16_linked_combine_kernels<Fixed>;
    kernels.early_combine = kEarlyCombine<Fixed>;
  }
  return kernels;
}
template <EpProtocol P, FixedShape Fixed>
inline constexpr EpKernels kBF16Kernels = make_bf16_kernels<P, Fixed>();

}  // namespace switchyard::inline SWITCHYARD_TARGET
