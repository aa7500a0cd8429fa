// The attention kernels of head dimension 128 that adjust scores, for the host and, through
// adjusted_attention_128.cu, for CUDA.
#include "attention_instances.hpp"

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(adjusted_128)() {
  return make_attention_kernels<128, ScoreKind::kAdjusted>();
}

}  // namespace switchyard
