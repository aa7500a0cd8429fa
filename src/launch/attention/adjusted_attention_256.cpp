// The attention kernels of head dimension 256 that adjust scores, for the host and, through
// adjusted_attention_256.cu, for CUDA.
#include "attention_instances.hpp"

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(adjusted_256)() {
  return make_attention_kernels<256, ScoreKind::kAdjusted>();
}

}  // namespace switchyard
