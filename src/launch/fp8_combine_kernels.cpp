// Combine of rows that travel as fp8, for the target this file is compiled for.
#include "switchyard/detail/launch/make_combine_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

const CombineKernels& slotted_fp8_combine_kernels() {
  return SlottedCombine<RunTimeShape, FP8CombineRows>::kTable;
}
const CombineKernels& direct_fp8_combine_kernels() {
  return DirectCombine<RunTimeShape, FP8CombineRows>::kTable;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
