// The tiled matmul kernels that decode rows, for the host and, through matmul_kernels.cu, for CUDA.
#include "switchyard/detail/launch/decoding_matmul_kernels.hpp"

#include "coded_rows.hpp"
#include "make_matmul_kernels.hpp"

namespace switchyard {
namespace {

template <typename Config>
Status launch_decoding_matmul(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                              const MatmulSettings& settings, const RowCodes& codes) {
  const Result<MatmulParams> params = matmul_params<Config>(tensors, settings);
  if (!params.ok()) return params.status();
  return target::launch("decoding_matmul", decoding_matmul_kernel<Config, CodedRows>,
                        matmul_launch<Config>(num_blocks), stream,
                        DecodingMatmulParams<CodedRows>{params.value(), {codes}});
}

template <MatmulTuning kTuning, MatmulEpilogue kEpilogue>
constexpr DecodingMatmulKernel make_decoding_matmul_kernel() {
  if constexpr (has_decoding_matmul_kernel(kTuning)) {
    using Config = MatmulConfig<kTuning, kEpilogue, RowLoading::kDecoded>;
    static_assert(sizeof(MatmulShared<Config>) <= kMaxSharedBytes);
    return {kTuning, &launch_decoding_matmul<Config>,
            &load_matmul<Config, &decoding_matmul_kernel<Config, CodedRows>>};
  } else {
    return {kTuning, nullptr, nullptr};
  }
}

template <MatmulEpilogue kEpilogue, int... kIndices>
const DecodingMatmulKernel* find_decoding(const MatmulTuning& tuning,
                                          std::integer_sequence<int, kIndices...>) {
  static constexpr DecodingMatmulKernel kKernels[] = {
      make_decoding_matmul_kernel<kMatmulTunings[kIndices], kEpilogue>()...};
  return find_kernel(kKernels, tuning);
}

}  // namespace

template <>
const DecodingMatmulKernel* decoding_matmul_kernel_of<kThisTarget>(MatmulEpilogue epilogue,
                                                                   const MatmulTuning& tuning) {
  constexpr auto kIndices = std::make_integer_sequence<int, kNumMatmulTunings>{};
  if (epilogue == MatmulEpilogue::kGated) return find_decoding<MatmulEpilogue::kGated>(tuning, kIndices);
  if (epilogue == MatmulEpilogue::kAffine) return find_decoding<MatmulEpilogue::kAffine>(tuning, kIndices);
  return nullptr;
}

}  // namespace switchyard
