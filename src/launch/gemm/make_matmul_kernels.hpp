// Makes the tiled matmul kernels of one epilogue. Each epilogue is compiled in a file of its own, side by
// side.
#pragma once

#include <utility>

#include "launch/kernel_tables.hpp"
#include "switchyard/detail/gemm/tiled/kernel.hpp"

namespace switchyard {

template <typename Config>
Result<MatmulParams> matmul_params(const MatmulTensorShapes& tensors, const MatmulSettings& settings) {
  MatmulTensorShapes boxed = tensors;
  boxed.rows.box_heads = Config::kBoxRows;
  boxed.weights.box_heads = Config::kWeightBoxRows;
  const Result<target::TensorMap> rows = Config::kDecodesRows ? Result<target::TensorMap>(target::TensorMap{})
                                                              : target::make_tensor_map(boxed.rows),
                                  weights = target::make_tensor_map(boxed.weights);
  if (!rows.ok()) return rows.status();
  if (!weights.ok()) return weights.status();
  return MatmulParams{rows.value(), weights.value(), settings};
}
template <typename Config>
LaunchShape matmul_launch(uint32_t num_blocks) {
  return {.num_blocks = num_blocks,
          .num_threads = Config::kNumThreads,
          .shared_bytes = sizeof(MatmulShared<Config>),
          .programmatic_dependent = true,
          .cluster_blocks = Config::kClusterBlocks};
}
template <typename Config>
Status launch_matmul(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                     const MatmulSettings& settings) {
  const Result<MatmulParams> params = matmul_params<Config>(tensors, settings);
  if (!params.ok()) return params.status();
  return target::launch("tiled_matmul", tiled_matmul_kernel<Config>, matmul_launch<Config>(num_blocks),
                        stream, params.value());
}

template <typename Config, auto kKernel>
Status load_matmul() {
#if defined(__CUDACC__)
  const target::ResidentKernel kernels[] = {{kKernel, sizeof(MatmulShared<Config>)}};
  return target::max_resident_blocks(kernels, Config::kNumThreads).status();
#else
  return Status();
#endif
}

// With coded weights a plain matmul is an affine one without a bias and weights of rows: one kernel less to
// compile for each tuning.
constexpr MatmulEpilogue compiled_epilogue(MatmulEpilogue epilogue, const MatmulTuning& tuning) {
  return epilogue == MatmulEpilogue::kPlain && is_coded(tuning.weights) ? MatmulEpilogue::kAffine : epilogue;
}

template <MatmulTuning kTuning, MatmulEpilogue kEpilogue>
constexpr MatmulKernel make_matmul_kernel() {
  if constexpr (has_matmul_kernel(kEpilogue, kTuning)) {
    using Config = MatmulConfig<kTuning, compiled_epilogue(kEpilogue, kTuning)>;
    static_assert(sizeof(MatmulShared<Config>) <= kMaxSharedBytes);
    return {kTuning, &launch_matmul<Config>, &load_matmul<Config, &tiled_matmul_kernel<Config>>,
            Config::kClusterBlocks};
  } else {
    return {kTuning, nullptr, nullptr, 1};
  }
}

// Null: there is none of that tuning.
template <typename Kernel, size_t kNumKernels>
const Kernel* find_kernel(const Kernel (&kernels)[kNumKernels], const MatmulTuning& tuning) {
  for (const Kernel& kernel : kernels)
    if (kernel.tuning == tuning && kernel.launch != nullptr) return &kernel;
  return nullptr;
}

template <MatmulEpilogue kEpilogue, int... kIndices>
constexpr MatmulKernels make_matmul_kernels(std::integer_sequence<int, kIndices...>) {
  return {{make_matmul_kernel<kMatmulTunings[kIndices], kEpilogue>()...}};
}
template <MatmulEpilogue kEpilogue>
constexpr MatmulKernels make_matmul_kernels() {
  return make_matmul_kernels<kEpilogue>(std::make_integer_sequence<int, kNumMatmulTunings>{});
}

}  // namespace switchyard
