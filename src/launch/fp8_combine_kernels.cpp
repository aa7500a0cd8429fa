// Combine of rows that travel as fp8, for the target this file is compiled for.
#include "switchyard/detail/launch/make_combine_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <EpProtocol P, FixedShape Fixed>
const CombineKernels& fp8_combine_kernels() {
  return kCombineKernels<P, Fixed, FP8CombineRows>;
}
template const CombineKernels& fp8_combine_kernels<Slotted, RunTimeShape>();
template const CombineKernels& fp8_combine_kernels<Direct, RunTimeShape>();

}  // namespace switchyard::inline SWITCHYARD_TARGET
