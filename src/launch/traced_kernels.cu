// The kernels of both protocols once more, such as can trace, for CUDA.
#define SWITCHYARD_TRACED
#include "switchyard/detail/launch/make_ep_kernels.hpp"

namespace switchyard {

const ProtocolKernels& cuda_traced_kernels();
const ProtocolKernels& cuda_traced_kernels() {
  static constexpr ProtocolKernels kKernels{.slotted = kBF16Kernels<Slotted, RunTimeShape>,
                                          .direct = kBF16Kernels<Direct, RunTimeShape>};
  return kKernels;
}

}  // namespace switchyard
