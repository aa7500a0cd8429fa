// The tiled matmul kernels that apply an activation, for the host and, through gated_matmul_kernels.cu, for
// CUDA.
#include "make_matmul_kernels.hpp"

namespace switchyard {

template <>
const MatmulKernels& matmul_kernels_of<kThisTarget, MatmulEpilogue::kGated>() {
  static constexpr MatmulKernels kTable = make_matmul_kernels<MatmulEpilogue::kGated>();
  return kTable;
}
template <>
const MatmulKernels& matmul_kernels_of<kThisTarget, MatmulEpilogue::kGatedFP8>() {
  static constexpr MatmulKernels kTable = make_matmul_kernels<MatmulEpilogue::kGatedFP8>();
  return kTable;
}

}  // namespace switchyard
