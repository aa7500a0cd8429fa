// The kernels of one target, behind plain functions: what the runtime launches without knowing the target.
#pragma once

#include "switchyard/base/status.hpp"
#include "switchyard/ep/all_reduce_params.hpp"
#include "switchyard/format/format_kind.hpp"
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

// The dispatch of one protocol and one token format.
struct DispatchKernels {
  using Launch = LaunchFunction<DispatchArguments, FormatTensors>;

  Launch async;
  Launch wait;
  Launch fused;
  // Blocks of these kernels, so launched, that fit on the current device at once. Loads them.
  Result<int> (*max_resident_blocks)(const EpShape& shape, const LaunchShape& launch);
};

// The combine of one protocol and one format of the rows.
struct CombineKernels {
  using Launch = LaunchFunction<CombineArguments, CombineDestination>;

  Launch async;
  Launch wait;
  Launch fused;
  Result<int> (*max_resident_blocks)(const EpShape& shape, const LaunchShape& launch);
};

struct AllReduceKernel {
  LaunchFunction<AllReduceParams> launch;
  Result<int> (*max_resident_blocks)(const LaunchShape& launch);  // as those of dispatch
};

// The kernels of one expert-parallel protocol.
struct EpKernels {
  // Null: there are none of that format.
  const DispatchKernels* (*dispatch)(TokenFormatKind format);
  const CombineKernels* (*combine)(CombineFormat format);
  AllReduceKernel all_reduce;  // where the all-to-all is skipped; the same for both protocols
};

struct KernelTable {
  // Loads the kernels below onto the current device; those of a protocol are loaded by their
  // max_resident_blocks. CUDA else loads one when it is first launched, and to do so may wait for whatever
  // runs, such as a kernel that waits for the one to be loaded.
  Status (*load)();
  EpKernels slotted;
  EpKernels direct;
  LaunchFunction<TopkSoftmaxParams> topk_softmax;
  LaunchFunction<GroupedMatmulParams> grouped_matmul;
  LaunchFunction<SiluMulArguments, SiluMulDestination> silu_mul;
  LaunchFunction<RecodeArguments> recode_rows;
  LaunchFunction<StallParams> stall;
  LaunchFunction<TimeStampParams> time_stamp;
  LaunchFunction<CheckOutputParams> check_output;
};

const KernelTable& host_kernel_table();
// Kernels that can trace; of formats and reductions those of bf16 only.
struct TracedKernels {
  EpKernels slotted;
  EpKernels direct;
};

// Only in builds with CUDA.
const KernelTable& cuda_kernel_table();
const TracedKernels& cuda_traced_kernels();

}  // namespace switchyard
