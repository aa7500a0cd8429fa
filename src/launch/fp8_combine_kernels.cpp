// Combine of rows that travel as fp8, for the target this file is compiled for.
#include "switchyard/detail/launch/make_combine_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

const CombineKernels& slotted_fp8_combine_kernels() {
  return kCombineKernels<Slotted, RunTimeShape, FP8CombineRows>;
}
const CombineKernels& direct_fp8_combine_kernels() {
  return kCombineKernels<Direct, RunTimeShape, FP8CombineRows>;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
