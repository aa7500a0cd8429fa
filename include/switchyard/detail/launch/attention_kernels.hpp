// The attention kernels of one target, behind plain functions: what the runtime launches without knowing the
// target.
#pragma once

#include "switchyard/detail/attention/config.hpp"
#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/device/launch_function.hpp"
#include "switchyard/detail/target/tensor_shape.hpp"

namespace switchyard {

// The tensors of a launch; what one load brings is filled in by it.
struct AttentionTensorShapes {
  TensorShape queries, keys, values;
};

// One kernel: for a head dimension and a kind.
struct AttentionKernel {
  Status (*launch)(uint32_t num_blocks, StreamHandle stream, const AttentionTensorShapes& tensors,
                   const AttentionNumbers& numbers);
  Status (*load)();  // onto the current device
  uint32_t tile_rows;
  uint32_t tile_keys;
  uint32_t blocks_per_multiprocessor;
};

struct AttentionKernels {
  AttentionKernel kernels[3][kNumAttentionKinds];  // [head dimension 64, 128, 256][AttentionKind]
  LaunchFunction<CombineSplitsParams> combine_splits;
  LaunchFunction<PlanTilesParams> plan_tiles;
  Status (*load)();        // the last two
  uint64_t (*l2_bytes)();  // of the current device

  const AttentionKernel& at(int head_dim, AttentionKind kind) const {
    return kernels[head_dim == 64 ? 0 : head_dim == 128 ? 1 : 2][static_cast<int>(kind)];
  }
};

// The device of a launch must be active, as for its other kernels.
const AttentionKernels& attention_kernels(Target target);

}  // namespace switchyard
