// The kernel of multi-head latent attention, for the host and, through mla_attention.cu, for CUDA.
#include "attention_instances.hpp"
#include "switchyard/detail/attention/mla/kernel.hpp"

namespace switchyard {

AttentionKernel SWITCHYARD_ATTENTION_KERNELS(mla)() {
  using Config = MlaConfig<attention_tuning(kLatentDim, AttentionKind::kDecode)>;
  return make_attention_kernel<Config, MlaShared<Config>,
                               &mla_kernel<Config, AnyScheduler<PlannerEnvironment>>>();
}

}  // namespace switchyard
