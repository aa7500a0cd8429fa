// What the tiled matmul is launched with: the settings, and the tensors as the target's copy engine sees
// them.
#pragma once

#include "switchyard/detail/gemm/tiled/params.hpp"
#include "switchyard/detail/target/matrix.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct MatmulParams {
  target::TensorMap rows;     // [rows][K]; not made where rows are decoded
  target::TensorMap weights;  // [expert][N][K]
  MatmulSettings settings;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
