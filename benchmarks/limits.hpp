// Two bare limits for dispatch and combine: rows scattered to random places, and rows gathered from them and
// summed, by kernels that wait for nobody. And a sweep through memory, which leaves nothing else in the
// caches.
#pragma once

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/device/launch_function.hpp"

namespace switchyard::benchmarks {

// Each row is read once and written to `num_places` rows of the output.
struct ScatterParams {
  const bf16* rows;        // [num_rows][hidden]
  bf16* output;            // [num_rows * num_places][hidden]
  const uint32_t* places;  // [num_rows][num_places]: rows of the output, each named once
  uint32_t num_rows;       // at least 1
  int32_t num_places;      // at most kMaxTopK
  int32_t hidden;          // a multiple of kHiddenMultiple
};

// Each output row is the weighted sum of `num_places` rows: in fp32, in order, rounded once.
struct GatherParams {
  const bf16* rows;        // [num_rows * num_places][hidden]
  bf16* output;            // [num_rows][hidden]
  const uint32_t* places;  // [num_rows][num_places]
  const float* weights;    // [num_rows][num_places]
  uint32_t num_rows;
  int32_t num_places;
  int32_t hidden;
};

// Every 16 bytes are read and written back, changed.
struct SweepParams {
  void* memory;
  uint64_t num_bytes;  // a multiple of 16
};

struct LimitKernels {
  // As many warps per block as shared memory has room for, at most those of the shape.
  LaunchFunction<ScatterParams> scatter;
  LaunchFunction<GatherParams> gather;
  LaunchFunction<SweepParams> sweep;
};

// The device of a launch must be active, as for its other kernels.
const LimitKernels& limit_kernels(Target target);

}  // namespace switchyard::benchmarks
