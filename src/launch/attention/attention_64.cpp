// The attention kernels of head dimension 64, for the host and, through attention_64.cu, for CUDA.
#include "attention_instances.hpp"

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(64)() {
  return make_attention_kernels<64, ScoreKind::kPlain>();
}

}  // namespace switchyard
