// The attention kernels of fp8 keys and values, for the host and, through attention_kernels.cu, for CUDA.
#include "attention_instances.hpp"
#include "switchyard/detail/attention/codes/consumer.hpp"

namespace switchyard {
namespace {

template <int kHeadDim, ScoreKind kScores>
constexpr AttentionKernel make_fp8_kernel() {
  using Config =
      AttentionConfig<attention_tuning(kHeadDim, AttentionKind::kDecode, 0, KvFormat::kFP8), kScores>;
  return make_attention_kernel<
      Config, AttentionShared<Config>,
      &attention_kernel<Config, AnyScheduler<PlannerEnvironment>, CodeConsumer<Config>>>();
}

template <ScoreKind kScores>
constexpr AttentionKernel fp8_kernel(int head_dim) {
  return head_dim == 64    ? make_fp8_kernel<64, kScores>()
         : head_dim == 128 ? make_fp8_kernel<128, kScores>()
                           : make_fp8_kernel<256, kScores>();
}

}  // namespace

AttentionKernel SWITCHYARD_ATTENTION_KERNELS(fp8)(ScoreKind scores, int head_dim) {
  return scores == ScoreKind::kPlain ? fp8_kernel<ScoreKind::kPlain>(head_dim)
                                     : fp8_kernel<ScoreKind::kAdjusted>(head_dim);
}

}  // namespace switchyard
