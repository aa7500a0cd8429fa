// The attention kernels of one target, behind plain functions: what the runtime launches without knowing the
// target.
#pragma once

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/target/tensor_shape.hpp"
#include "switchyard/types/target.hpp"
#include "switchyard/types/tile_scheduler.hpp"

namespace switchyard {

// The tensors of a launch, which fills in what one load brings.
struct AttentionTensorShapes {
  TensorShape queries, keys, values;
};

// One kernel for a head dimension and a kind, with the tiles of its AttentionTuning.
struct AttentionKernel {
  Status (*launch)(uint32_t num_blocks, StreamHandle stream, const AttentionTensorShapes& tensors,
                   const AttentionSettings& settings);
  Status (*load)();  // onto the current device
};

struct KernelsOfHeadDim {
  // [AttentionKind][candidate]; kernels that adjust scores, or have an own scheduler, have the first only.
  AttentionKernel kernels[kNumAttentionKinds][kMaxCandidates];
};

// The kernels of one head dimension with a scheduler of an application (own_attention_kernels.hpp).
struct OwnAttentionKernels {
  Target target;  // that they are compiled for
  int head_dim;
  KernelsOfHeadDim kernels;
  MHASchedule order;  // of the scheduler
  const char* scheduler_name;
  GridDim (*grid_dim)(uint32_t batch_size, uint32_t max_num_prompt_tiles, const MHATileShape& shape);
};

struct AttentionKernels {
  KernelsOfHeadDim by_head_dim[2][3];  // [ScoreKind][64, 128, 256]
  AttentionKernel mla;                 // does not adjust scores
  AttentionKernel fp8[2][3];           // [ScoreKind][64, 128, 256]
  LaunchFunction<PlanTilesParams> plan_tiles;
  Status (*load)();        // the last one
  uint64_t (*l2_bytes)();  // of the current device

  const AttentionKernel& at(int head_dim, AttentionKind kind, ScoreKind scores, KvFormat format,
                            int candidate) const {
    if (head_dim == kLatentDim) return mla;
    const int dim_idx = head_dim == 64 ? 0 : head_dim == 128 ? 1 : 2;
    if (format == KvFormat::kFP8) return fp8[static_cast<int>(scores)][dim_idx];
    return by_head_dim[static_cast<int>(scores)][dim_idx].kernels[static_cast<int>(kind)][candidate];
  }
};

// The device of a launch must be active, as for its other kernels.
const AttentionKernels& attention_kernels(Target target);

}  // namespace switchyard
