// The attention kernels that decode fp8 keys and values, for the host and, through fp8_attention.cu, for
// CUDA.
#include "attention_instances.hpp"

namespace switchyard {
namespace {

template <int kHeadDim>
constexpr AttentionKernel make_fp8_kernel() {
  return make_attention_kernel<attention_tuning(kHeadDim, AttentionKind::kDecode, 0, KvFormat::kFP8),
                               ScoreKind::kPlain, AnyScheduler<PlannerEnvironment>>();
}

}  // namespace

AttentionKernel SWITCHYARD_ATTENTION_KERNELS(fp8)(int head_dim) {
  return head_dim == 64 ? make_fp8_kernel<64>() : make_fp8_kernel<128>();
}

}  // namespace switchyard
