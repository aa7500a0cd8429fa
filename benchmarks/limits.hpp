// Bare limits. For dispatch and combine: one kernel scatters rows to random rows, another gathers and sums
// them, and neither waits for another rank. For decoding: a kernel that only reads. A fourth kernel sweeps
// through memory to evict everything else from the caches.
#pragma once

#include "switchyard/detail/device/device.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard::benchmarks {

// Each row is read once and written to `top_k` rows of the output.
struct ScatterParams {
  const bf16* rows;             // [num_rows][hidden]
  bf16* output;                 // [num_rows * top_k][hidden]
  const uint32_t* row_indices;  // [num_rows][top_k]: rows of the output, each named once
  uint32_t num_rows;            // at least 1
  int32_t top_k;                // at most kMaxTopK
  int32_t hidden;               // a multiple of kHiddenMultiple
};

// Each output row is the weighted sum of `top_k` rows: in fp32, in order, rounded once.
struct GatherParams {
  const bf16* rows;             // [num_rows * top_k][hidden]
  bf16* output;                 // [num_rows][hidden]
  const uint32_t* row_indices;  // [num_rows][top_k]
  const float* weights;         // [num_rows][top_k]
  uint32_t num_rows;
  int32_t top_k;
  int32_t hidden;
};

// Every 16 bytes are read, changed and written back.
struct SweepParams {
  void* memory;
  uint64_t num_bytes;  // a multiple of 16
};

// Two tensors are read, and nothing is computed.
struct ReadParams {
  const void* tensors[2];
  uint64_t num_bytes;  // of each; a multiple of 16
};

struct LimitKernels {
  // Uses as many warps per block as fit into shared memory, at most those of the shape.
  LaunchFunction<ScatterParams> scatter;
  LaunchFunction<GatherParams> gather;
  LaunchFunction<SweepParams> sweep;
  LaunchFunction<ReadParams> read;
};

// The device of a launch must be active, as for its other kernels.
const LimitKernels& limit_kernels(Target target);

}  // namespace switchyard::benchmarks
