// The kernels of one target, behind plain functions: what the runtime launches without knowing the target.
#pragma once

#include <tuple>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/ep/all_reduce_params.hpp"
#include "switchyard/detail/ep/annotate_rows_params.hpp"
#include "switchyard/detail/ep/expand_rows_params.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/rank_choices_params.hpp"
#include "switchyard/detail/ep/sibling_rows_params.hpp"
#include "switchyard/detail/gemm/params.hpp"
#include "switchyard/detail/sync/output_hash.hpp"
#include "switchyard/detail/sync/time_stamp_params.hpp"
#include "switchyard/detail/testing/stall_params.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/expert_parallel.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

// One call of dispatch, dispatch_async or dispatch_wait. A protocol's kernels take their own part.
struct DispatchCall {
  DispatchStep step;
  std::tuple<SlottedDispatchPart, DirectDispatchPart> parts;
  FormatTensors tensors;
};

// One call of combine, combine_async or combine_wait.
struct CombineCall {
  CombineStep step;
  std::tuple<SlottedCombinePart, DirectCombinePart> parts;
  CombineDestination destination;
};

// The dispatch of one protocol and one token format.
struct DispatchKernels {
  using Launch = LaunchFunction<DispatchCall>;

  Launch async;
  Launch wait;
  Launch fused;
  // Returns how many blocks of these kernels, with this launch shape, can be resident on the current device
  // at once. Loads the kernels.
  Result<int> (*max_resident_blocks)(const EpShape& shape, const LaunchShape& launch);
};

// The combine of one protocol and one format of the rows.
struct CombineKernels {
  using Launch = LaunchFunction<CombineCall>;

  Launch async;
  Launch wait;
  Launch fused;
  Result<int> (*max_resident_blocks)(const EpShape& shape, const LaunchShape& launch);
};

// A combine that begins while experts still work. Null: there is none.
struct EarlyCombineKernel {
  LaunchFunction<CombineCall> launch = nullptr;
  Result<int> (*max_resident_blocks)(const LaunchShape& launch) = nullptr;
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
  // Direct: as dispatch, by kernels that link siblings (Linked). Null: there are none.
  const DispatchKernels* (*linked_dispatch)(TokenFormatKind format) = nullptr;
  // As combine, by kernels that pull siblings as their sum. Null: there are none.
  const CombineKernels* (*linked_combine)(CombineFormat format) = nullptr;
  EarlyCombineKernel early_combine = {};  // direct
};

// The kernels of both protocols.
struct ProtocolKernels {
  EpKernels slotted;
  EpKernels direct;
};

struct KernelTable {
  // Loads the kernels below onto the current device; those of a protocol are loaded by their
  // max_resident_blocks. Otherwise CUDA loads a kernel at its first launch, and may then wait for whatever
  // runs, such as a kernel that waits for the one to be loaded.
  Status (*load)();
  EpKernels slotted;
  EpKernels direct;
  ProtocolKernels wired = {};  // for worlds in which some ranks are reached over a wire; may have none
  LaunchFunction<AnnotateRowsParams> annotate_rows;
  LaunchFunction<ChooseRanksParams> choose_ranks;
  LaunchFunction<FetchChoicesParams> fetch_choices;
  LaunchFunction<FillSiblingsParams> fill_siblings;
  LaunchFunction<ReduceSiblingsParams> reduce_siblings;
  LaunchFunction<ReduceSiblingsParams> reduce_fp8_siblings;
  // Rows per rank to their experts and back.
  LaunchFunction<ExpandedRows> place_choices;
  LaunchFunction<ExpandRowsParams> expand_rows;
  LaunchFunction<SumChoicesParams> sum_choices;
  LaunchFunction<CountRoutingParams> count_routing;
  LaunchFunction<NarrowIdsParams> narrow_ids;
  LaunchFunction<CountSourcesParams> count_sources;
  LaunchFunction<StoreRowsParams> store_rows;
  LaunchFunction<TopkSoftmaxParams> topk_softmax;
  LaunchFunction<GroupedMatmulParams> grouped_matmul;
  LaunchFunction<SiluMulInput, SiluMulDestination> silu_mul;
  LaunchFunction<RecodeCall> recode_rows;
  LaunchFunction<StallParams> stall;
  LaunchFunction<TimeStampParams> time_stamp;
  LaunchFunction<CheckOutputParams> check_output;
  // Kernels that can trace; bf16 is their only format and reduction. Null: those above can.
  const ProtocolKernels& (*traced)() = nullptr;

  ProtocolKernels traced_kernels() const {
    return traced != nullptr ? traced() : ProtocolKernels{slotted, direct};
  }
};

const KernelTable& kernel_table(Target target);

}  // namespace switchyard
