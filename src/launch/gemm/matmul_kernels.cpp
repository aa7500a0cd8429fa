// The table of tiled matmul kernels without an epilogue, for the host and, through matmul_kernels.cu, for
// CUDA.
#include "make_matmul_kernels.hpp"

namespace switchyard {

template <>
const MatmulKernels& matmul_kernels_of<kThisTarget, MatmulEpilogue::kPlain>() {
  static constexpr MatmulKernels kTable = make_matmul_kernels<MatmulEpilogue::kPlain>();
  return kTable;
}

}  // namespace switchyard
