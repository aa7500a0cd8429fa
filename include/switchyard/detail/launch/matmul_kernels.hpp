// The tiled matmul kernels of one target, behind plain functions: what the runtime launches without knowing
// the target.
#pragma once

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/gemm/tiled/params.hpp"
#include "switchyard/detail/target/tensor_shape.hpp"
#include "switchyard/types/matmul_tuning.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

// The tensors of a launch, which fills in what one load brings.
struct MatmulTensorShapes {
  TensorShape rows;     // one head per row
  TensorShape weights;  // one row per expert, one head per output column
};

struct MatmulKernel {
  MatmulTuning tuning;
  Status (*launch)(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                   const MatmulSettings& settings);  // null: there is no kernel
  Status (*load)();                                  // onto the current device
  uint32_t cluster_blocks;                           // num_blocks is a multiple of it
};

// A kernel that is given something in addition: what it waits for, whom it tells, what its rows are.
template <typename Rows>
struct MatmulKernelWith {
  MatmulTuning tuning;
  Status (*launch)(uint32_t num_blocks, StreamHandle stream, const MatmulTensorShapes& tensors,
                   const MatmulSettings& settings, const Rows& rows);  // null: there is no kernel
  Status (*load)();                                                    // onto the current device
};

struct MatmulKernels {
  MatmulKernel kernels[kNumMatmulTunings];

  // Null: there is none of that tuning.
  const MatmulKernel* find(const MatmulTuning& tuning) const {
    for (const MatmulKernel& kernel : kernels)
      if (kernel.tuning == tuning && kernel.launch != nullptr) return &kernel;
    return nullptr;
  }
};

// The device of a launch must be active, as for its other kernels.
const MatmulKernels& matmul_kernels(Target target, MatmulEpilogue epilogue = MatmulEpilogue::kPlain);

}  // namespace switchyard
