// Instantiates every kernel for the target this file is compiled for and a shape: kernel_table.cpp for the
// shape the library ships, a test for kernels of its own.
#pragma once

#include "launch_recode_rows.hpp"
#include "launch_silu_mul.hpp"
#include "switchyard/detail/ep/annotate_rows.hpp"
#include "switchyard/detail/ep/count_routing.hpp"
#include "switchyard/detail/ep/count_sources.hpp"
#include "switchyard/detail/ep/expand_rows.hpp"
#include "switchyard/detail/ep/narrow_ids.hpp"
#include "switchyard/detail/ep/rank_choices.hpp"
#include "switchyard/detail/ep/reduce_siblings.hpp"
#include "switchyard/detail/ep/sibling_rows.hpp"
#include "switchyard/detail/ep/store_rows.hpp"
#include "switchyard/detail/ep/topk_softmax.hpp"
#include "switchyard/detail/gemm/grouped_matmul.hpp"
#include "switchyard/detail/launch/make_ep_kernels.hpp"
#include "switchyard/detail/sync/check_output.hpp"
#include "switchyard/detail/sync/time_stamp.hpp"
#include "switchyard/detail/testing/stall.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline constexpr char kAnnotateRows[] = "annotate_rows", kNarrowIds[] = "narrow_ids";
inline constexpr char kCountSources[] = "count_sources", kStoreRows[] = "store_rows";
inline constexpr char kCountRouting[] = "count_routing";
inline constexpr char kTopkSoftmax[] = "topk_softmax";
inline constexpr char kChooseRanks[] = "choose_ranks", kFetchChoices[] = "fetch_choices";
inline constexpr char kFillSiblings[] = "fill_siblings", kReduceSiblings[] = "reduce_siblings";
inline constexpr char kPlaceChoices[] = "place_choices", kExpandRows[] = "expand_rows";
inline constexpr char kSumChoices[] = "sum_choices";
inline constexpr char kGroupedMatmul[] = "grouped_matmul";
inline constexpr char kStall[] = "stall", kTimeStamp[] = "time_stamp", kCheckOutput[] = "check_output";

template <const char* kName, typename Params, void (*kKernel)(Params)>
Status launch_plain(const LaunchShape& shape, StreamHandle stream, const Params& params) {
  return target::launch(kName, kKernel, shape, stream, params);
}

// The same for a kernel that has `Shared` in shared memory.
template <const char* kName, typename Shared, typename Params, void (*kKernel)(Params)>
Status launch_with(const LaunchShape& shape, StreamHandle stream, const Params& params) {
  return target::launch(kName, kKernel, with_shared(shape, sizeof(Shared)), stream, params);
}

template <FixedShape Fixed, typename Rows>
Status launch_reduce_siblings(const LaunchShape& shape, StreamHandle stream,
                              const ReduceSiblingsParams& params) {
  const int num_warps = static_cast<int>(shape.num_threads) / kWarpSize;
  return target::launch(kReduceSiblings, &reduce_siblings_kernel<Fixed, Rows>,
                        with_shared(shape, ReduceSiblingsShared::bytes<Rows>(num_warps)), stream, params);
}

// The others are loaded when max_resident_blocks looks at them.
inline Status load_plain_kernels() {
#if defined(__CUDACC__)
  constexpr int kMaxWarps = TokenSources::kMaxWarps;
  const target::ResidentKernel kernels[] = {{&annotate_rows_kernel, 0},
                                            {&topk_softmax_kernel, 0},
                                            {&choose_ranks_kernel<RunTimeShape>, 0},
                                            {&fetch_choices_kernel<RunTimeShape>, 0},
                                            {&fill_siblings_kernel<RunTimeShape>, sizeof(ArrivedRows)},
                                            {&reduce_siblings_kernel<RunTimeShape, BF16CombineRows>,
                                             ReduceSiblingsShared::bytes<BF16CombineRows>(kMaxWarps)},
                                            {&reduce_siblings_kernel<RunTimeShape, FP8CombineRows>,
                                             ReduceSiblingsShared::bytes<FP8CombineRows>(kMaxWarps)},
                                            {&place_choices_kernel, sizeof(PlaceChoicesShared)},
                                            {&expand_rows_kernel, 0},
                                            {&sum_choices_kernel, sizeof(TokenSources)},
                                            {&count_routing_kernel, sizeof(CountRoutingShared)},
                                            {&narrow_ids_kernel, 0},
                                            {&count_sources_kernel, 0},
                                            {&store_rows_kernel, 0},
                                            {&grouped_matmul_kernel, 0},
                                            {&stall_kernel, 0},
                                            {&time_stamp_kernel, 0},
                                            {&check_output_kernel, 0}};
  SWITCHYARD_RETURN_IF_ERROR(load_silu_mul_kernels());
  SWITCHYARD_RETURN_IF_ERROR(load_recode_rows_kernels());
  return target::max_resident_blocks(kernels, kWarpSize).status();
#else
  return Status();
#endif
}

// The kernels of the two protocols, and all others beside them. `Fixed` is the shape of those around a
// dispatch.
template <FixedShape Fixed = RunTimeShape>
constexpr KernelTable make_kernel_table(const EpKernels& slotted, const EpKernels& direct) {
  return {
      .load = &load_plain_kernels,
      .slotted = slotted,
      .direct = direct,
      .annotate_rows = &launch_plain<kAnnotateRows, AnnotateRowsParams, annotate_rows_kernel>,
      .choose_ranks = &launch_plain<kChooseRanks, ChooseRanksParams, choose_ranks_kernel<Fixed>>,
      .fetch_choices = &launch_plain<kFetchChoices, FetchChoicesParams, fetch_choices_kernel<Fixed>>,
      .fill_siblings =
          &launch_with<kFillSiblings, ArrivedRows, FillSiblingsParams, fill_siblings_kernel<Fixed>>,
      .reduce_siblings = &launch_reduce_siblings<Fixed, BF16CombineRows>,
      .reduce_fp8_siblings = &launch_reduce_siblings<Fixed, FP8CombineRows>,
      .place_choices = &launch_with<kPlaceChoices, PlaceChoicesShared, ExpandedRows, place_choices_kernel>,
      .expand_rows = &launch_plain<kExpandRows, ExpandRowsParams, expand_rows_kernel>,
      .sum_choices = &launch_with<kSumChoices, TokenSources, SumChoicesParams, sum_choices_kernel>,
      .count_routing =
          &launch_with<kCountRouting, CountRoutingShared, CountRoutingParams, count_routing_kernel>,
      .narrow_ids = &launch_plain<kNarrowIds, NarrowIdsParams, narrow_ids_kernel>,
      .count_sources = &launch_plain<kCountSources, CountSourcesParams, count_sources_kernel>,
      .store_rows = &launch_plain<kStoreRows, StoreRowsParams, store_rows_kernel>,
      .topk_softmax = &launch_plain<kTopkSoftmax, TopkSoftmaxParams, topk_softmax_kernel>,
      .grouped_matmul = &launch_plain<kGroupedMatmul, GroupedMatmulParams, grouped_matmul_kernel>,
      .silu_mul = &launch_silu_mul,
      .recode_rows = &launch_recode_rows,
      .stall = &launch_plain<kStall, StallParams, stall_kernel>,
      .time_stamp = &launch_plain<kTimeStamp, TimeStampParams, time_stamp_kernel>,
      .check_output = &launch_plain<kCheckOutput, CheckOutputParams, check_output_kernel>,
  };
}
// bf16 only.
template <FixedShape ForSlotted, FixedShape ForDirect>
constexpr KernelTable make_kernel_table() {
  return make_kernel_table<ForDirect>(kBF16Kernels<Slotted, ForSlotted>, kBF16Kernels<Direct, ForDirect>);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
