// The attention kernels that decode fp8 keys and values, for the host and, through fp8_attention.cu, for
// CUDA.
#include "attention_instances.hpp"
#include "switchyard/detail/attention/codes/consumer.hpp"

namespace switchyard {
namespace {

template <int kHeadDim>
constexpr AttentionKernel make_fp8_kernel() {
  using Config = AttentionConfig<attention_tuning(kHeadDim, AttentionKind::kDecode, 0, KvFormat::kFP8)>;
  return make_attention_kernel<
      Config, AttentionShared<Config>,
      &attention_kernel<Config, AnyScheduler<PlannerEnvironment>, CodeConsumer<Config>>>();
}

}  // namespace

AttentionKernel SWITCHYARD_ATTENTION_KERNELS(fp8)(int head_dim) {
  return head_dim == 64    ? make_fp8_kernel<64>()
         : head_dim == 128 ? make_fp8_kernel<128>()
                           : make_fp8_kernel<256>();
}

}  // namespace switchyard
