// Combine of rows that travel as fp8, for the target this file is compiled for.
#include "switchyard/detail/launch/make_combine_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <EpProtocol P, FixedShape Fixed>
const CombineKernels& fp8_combine_kernels() {
  return kCombineKernels<P, Fixed, FP8CombineRows>;
}
template const CombineKernels& fp8_combine_kernels<Slotted, RunTimeShape>();
template const CombineKernels& fp8_combine_kernels<Direct, RunTimeShape>();

template <FixedShape Fixed, typename Rows>
const CombineKernels& linked_combine_kernels() {
  return kCombineKernels<Direct, Linked<Fixed>, Rows>;
}
template const CombineKernels& linked_combine_kernels<RunTimeShape, FP8CombineRows>();

}  // namespace switchyard::inline SWITCHYARD_TARGET
