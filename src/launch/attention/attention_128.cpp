// The attention kernels of head dimension 128, for the host and, through attention_128.cu, for CUDA.
#include "attention_instances.hpp"

namespace switchyard {

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(128)() {
  return make_attention_kernels<128, ScoreKind::kPlain>();
}

}  // namespace switchyard
