// The kernels of one target, behind plain functions: what the runtime launches without knowing the target.
#pragma once

#include "switchyard/base/status.hpp"
#include "switchyard/ep/params.hpp"
#include "switchyard/gemm/params.hpp"
#include "switchyard/sync/output_check.hpp"
#include "switchyard/target/vocabulary.hpp"

namespace switchyard {

enum class CombineReduction { kWeighted, kUnreduced };

// What becomes of the combined values: [num_tokens][hidden], or [num_tokens][top_k][hidden] unreduced.
struct CombineDestination {
  CombineReduction reduction = CombineReduction::kWeighted;
  bf16* output = nullptr;
};

template <typename... Arguments>
using LaunchFunction = Status (*)(const LaunchShape& shape, StreamHandle stream,
                                  const Arguments&... arguments);

// The kernels of one expert-parallel protocol.
struct EpKernels {
  using Dispatch = Status (*)(const LaunchShape&, StreamHandle, const DispatchArguments&, bf16* output_rows);
  using Combine = Status (*)(const LaunchShape&, StreamHandle, const CombineArguments&,
                             const CombineDestination&);

  Dispatch dispatch_async;
  Dispatch dispatch_wait;
  Dispatch dispatch;
  Combine combine_async;
  Combine combine_wait;
  Combine combine;
  // Blocks of these kernels, so launched, that fit on the current device at once.
  Result<int> (*max_resident_blocks)(const EpShape& shape, const LaunchShape& launch);
};

struct KernelTable {
  // Loads the kernels below onto the current device; those of a protocol are loaded by its
  // max_resident_blocks. CUDA else loads one when it is first launched, and to do so may wait for whatever
  // runs, such as a kernel that waits for the one to be loaded.
  Status (*load)();
  EpKernels slotted;
  EpKernels direct;
  LaunchFunction<TopkSoftmaxParams> topk_softmax;
  LaunchFunction<GroupedMatmulParams> grouped_matmul;
  LaunchFunction<SiluMulParams> silu_mul;
  LaunchFunction<StallParams> stall;
  LaunchFunction<CheckOutputParams> check_output;
};

const KernelTable& host_kernel_table();
// Only in builds with CUDA.
const KernelTable& cuda_kernel_table();
const KernelTable& cuda_traced_kernel_table();  // kernels that can trace

}  // namespace switchyard
