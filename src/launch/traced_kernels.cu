// The kernels of both protocols once more, such as can trace, for CUDA.
#define SWITCHYARD_TRACED
#include "switchyard/detail/launch/launch_all_reduce.hpp"
#include "switchyard/detail/launch/make_combine_kernels.hpp"
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"

namespace switchyard {

const TracedKernels& cuda_traced_kernels();
const TracedKernels& cuda_traced_kernels() {
  static constexpr TracedKernels kKernels{
      .slotted = {&slotted_bf16_alone<RunTimeShape>, &slotted_bf16_combine_alone<RunTimeShape>,
                  kAllReduce<RunTimeShape>},
      .direct = {&direct_bf16_alone<RunTimeShape>, &direct_bf16_combine_alone<RunTimeShape>,
                 kAllReduce<RunTimeShape>}};
  return kKernels;
}

}  // namespace switchyard
