// The tiled matmul kernels that add a bias and weigh rows, for the host and, through
// matmul_kernels.cu, for CUDA.
#include "make_matmul_kernels.hpp"

namespace switchyard {

template <>
const MatmulKernels& matmul_kernels_of<kThisTarget, MatmulEpilogue::kAffine>() {
  static constexpr MatmulKernels kTable = make_matmul_kernels<MatmulEpilogue::kAffine>();
  return kTable;
}
template <>
const MatmulKernels& matmul_kernels_of<kThisTarget, MatmulEpilogue::kAffineFP8>() {
  static constexpr MatmulKernels kTable = make_matmul_kernels<MatmulEpilogue::kAffineFP8>();
  return kTable;
}

}  // namespace switchyard
