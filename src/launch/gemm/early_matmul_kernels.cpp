// The tiled matmul kernels that overlap with the exchange of rows, for the host and, through
// matmul_kernels.cu, for CUDA.
#include "switchyard/detail/launch/early_matmul_kernels.hpp"

#include "expert_arrivals.hpp"
#include "expert_completion.hpp"
#include "make_matmul_kernels.hpp"

namespace switchyard {
namespace {

template <typename Config>
Status launch_early_matmul(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                           const MatmulSettings& settings, const RowReadiness& readiness) {
  const Result<MatmulParams> params = matmul_params<Config>(tensors, settings);
  if (!params.ok()) return params.status();
  const uint32_t num_complete_groups =
      settings.groups.num_groups - static_cast<uint32_t>(readiness.n_local_experts);
  return target::launch("early_matmul", early_matmul_kernel<Config, ExpertArrivals>,
                        matmul_launch<Config>(num_blocks), stream,
                        EarlyMatmulParams<ExpertArrivals>{params.value(), {readiness, num_complete_groups}});
}

template <typename Config>
Status launch_telling_matmul(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                             const MatmulSettings& settings, const RowCompletion& completion) {
  const Result<MatmulParams> params = matmul_params<Config>(tensors, settings);
  if (!params.ok()) return params.status();
  return target::launch("telling_matmul", telling_matmul_kernel<Config, ExpertCompletion>,
                        matmul_launch<Config>(num_blocks), stream,
                        TellingMatmulParams<ExpertCompletion>{params.value(), {completion}});
}

template <MatmulTuning kTuning>
constexpr EarlyMatmulKernel make_early_matmul_kernel() {
  if constexpr (has_early_matmul_kernel(kTuning)) {
    using Config = MatmulConfig<kTuning, early_epilogue(kTuning.element)>;
    return {kTuning, &launch_early_matmul<Config>,
            &load_matmul<Config, &early_matmul_kernel<Config, ExpertArrivals>>};
  } else {
    return {kTuning, nullptr, nullptr};
  }
}
// Without a bias and weights of rows it is a plain one.
template <MatmulTuning kTuning>
constexpr TellingMatmulKernel make_telling_matmul_kernel() {
  if constexpr (has_telling_matmul_kernel(kTuning)) {
    using Config = MatmulConfig<kTuning, MatmulEpilogue::kAffine>;
    return {kTuning, &launch_telling_matmul<Config>,
            &load_matmul<Config, &telling_matmul_kernel<Config, ExpertCompletion>>};
  } else {
    return {kTuning, nullptr, nullptr};
  }
}

template <int... kIndices>
const EarlyMatmulKernel* find_early(const MatmulTuning& tuning, std::integer_sequence<int, kIndices...>) {
  static constexpr EarlyMatmulKernel kKernels[] = {make_early_matmul_kernel<kMatmulTunings[kIndices]>()...};
  return find_kernel(kKernels, tuning);
}
template <int... kIndices>
const TellingMatmulKernel* find_telling(const MatmulTuning& tuning, std::integer_sequence<int, kIndices...>) {
  static constexpr TellingMatmulKernel kKernels[] = {
      make_telling_matmul_kernel<kMatmulTunings[kIndices]>()...};
  return find_kernel(kKernels, tuning);
}

}  // namespace

template <>
const EarlyMatmulKernel* early_matmul_kernel_of<kThisTarget>(const MatmulTuning& tuning) {
  return find_early(tuning, std::make_integer_sequence<int, kNumMatmulTunings>{});
}
template <>
const TellingMatmulKernel* telling_matmul_kernel_of<kThisTarget>(const MatmulTuning& tuning) {
  return find_telling(tuning, std::make_integer_sequence<int, kNumMatmulTunings>{});
}

}  // namespace switchyard
