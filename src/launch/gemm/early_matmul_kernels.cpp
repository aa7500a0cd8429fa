// The tiled matmul kernels that start while rows are on their way, for the host and, through
// early_matmul_kernels.cu, for CUDA: those of a layer's gate_up in bf16.
#include "switchyard/detail/launch/early_matmul_kernels.hpp"

#include "expert_arrivals.hpp"
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

template <MatmulTuning kTuning>
constexpr EarlyMatmulKernel make_early_matmul_kernel() {
  if constexpr (has_early_matmul_kernel(kTuning)) {
    using Config = MatmulConfig<kTuning, MatmulEpilogue::kGated>;
    return {kTuning, &launch_early_matmul<Config>,
            &load_matmul<Config, &early_matmul_kernel<Config, ExpertArrivals>>};
  } else {
    return {kTuning, nullptr, nullptr};
  }
}

template <int... kIndices>
const EarlyMatmulKernel* find(const MatmulTuning& tuning, std::integer_sequence<int, kIndices...>) {
  static constexpr EarlyMatmulKernel kKernels[] = {make_early_matmul_kernel<kMatmulTunings[kIndices]>()...};
  for (const EarlyMatmulKernel& kernel : kKernels)
    if (kernel.tuning == tuning && kernel.launch != nullptr) return &kernel;
  return nullptr;
}

}  // namespace

template <>
const EarlyMatmulKernel* early_matmul_kernel_of<kThisTarget>(const MatmulTuning& tuning) {
  return find(tuning, std::make_integer_sequence<int, kNumMatmulTunings>{});
}

}  // namespace switchyard
