// Combine with a wire, for the target this file is compiled for.
#include "switchyard/detail/launch/make_combine_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <EpProtocol P, FixedShape Fixed>
const CombineKernels& fp8_combine_kernels() {
  return kCombineKernels<P, Fixed, FP8CombineRows>;
}
template const CombineKernels& fp8_combine_kernels<Slotted, WiredShape>();
template const CombineKernels& fp8_combine_kernels<Direct, WiredShape>();

template <EpProtocol P>
const CombineKernels& wired_bf16_combine_kernels() {
  return kCombineKernels<P, WiredShape, BF16CombineRows>;
}
template const CombineKernels& wired_bf16_combine_kernels<Slotted>();
template const CombineKernels& wired_bf16_combine_kernels<Direct>();

template <FixedShape Fixed, typename Rows>
const CombineKernels& linked_combine_kernels() {
  return kCombineKernels<Direct, Linked<Fixed>, Rows>;
}
template const CombineKernels& linked_combine_kernels<WiredShape, BF16CombineRows>();
template const CombineKernels& linked_combine_kernels<WiredShape, FP8CombineRows>();

}  // namespace switchyard::inline SWITCHYARD_TARGET
