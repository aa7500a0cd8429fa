// The attention kernels of head dimension 64 that adjust scores, for the host and, through
// adjusted_attention_64.cu, for CUDA.
#include "attention_instances.hpp"

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(adjusted_64)() {
  return make_attention_kernels<64, ScoreKind::kAdjusted>();
}

}  // namespace switchyard
