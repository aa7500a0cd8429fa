// What the tiled matmul is launched with: the numbers, and the tensors as the target's copy engine sees them.
#pragma once

#include "switchyard/detail/gemm/tiled/params.hpp"
#include "switchyard/detail/target/matrix.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct MatmulParams {
  target::TensorMap rows;     // [rows][K]
  target::TensorMap weights;  // [expert][N][K]
  MatmulNumbers numbers;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
