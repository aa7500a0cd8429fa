// The tiled matmul kernels that add a bias and weigh rows, for the host and, through
// affine_matmul_kernels.cu, for CUDA.
#include "make_matmul_kernels.hpp"

namespace switchyard {

template <>
const MatmulKernels& matmul_kernels_of<kThisTarget, MatmulEpilogue::kAffine>() {
  static constexpr MatmulKernels kTable = make_matmul_kernels<MatmulEpilogue::kAffine>();
  return kTable;
}

}  // namespace switchyard
