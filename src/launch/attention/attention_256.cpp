// The attention kernels of head dimension 256, for the host and, through attention_256.cu, for CUDA.
#include "attention_instances.hpp"

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(256)() {
  return make_attention_kernels<256, ScoreKind::kPlain>();
}

}  // namespace switchyard
