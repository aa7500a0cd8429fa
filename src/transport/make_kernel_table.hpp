// Instantiates every kernel for the target this file is compiled for and a shape: kernel_table.cpp for the
// shape the library ships, a test for kernels of its own.
#pragma once

#include "launch_recode_rows.hpp"
#include "launch_silu_mul.hpp"
#include "make_dispatch_kernels.hpp"
#include "switchyard/ep/topk_softmax.hpp"
#include "switchyard/gemm/grouped_matmul.hpp"
#include "switchyard/sync/check_output.hpp"
#include "switchyard/sync/stall.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait",
                      kCombine[] = "combine";
inline constexpr char kTopkSoftmax[] = "topk_softmax", kGroupedMatmul[] = "grouped_matmul";
inline constexpr char kStall[] = "stall", kCheckOutput[] = "check_output";

inline constexpr uint64_t kDirectCombineBytes = sizeof(DirectCombineShared);

template <const char* kName, void (*kWeighted)(CombineParams<StoreWeighted>),
          void (*kUnreduced)(CombineParams<StoreUnreduced>), uint64_t kSharedBytes>
Status launch_combine(const LaunchShape& shape, StreamHandle stream, const CombineArguments& arguments,
                      const CombineDestination& destination) {
  if (destination.reduction == CombineReduction::kUnreduced)
    return target::launch(kName, kUnreduced, with_shared(shape, kSharedBytes), stream,
                          CombineParams<StoreUnreduced>{arguments, StoreUnreduced{destination.output}});
  return target::launch(
      kName, kWeighted, with_shared(shape, kSharedBytes), stream,
      CombineParams<StoreWeighted>{arguments, StoreWeighted{destination.output, arguments.shape.hidden}});
}

template <const char* kName, typename Params, void (*kKernel)(Params)>
Status launch_plain(const LaunchShape& shape, StreamHandle stream, const Params& params) {
  return target::launch(kName, kKernel, shape, stream, params);
}

template <typename... Kernels>
Result<int> max_resident_combine([[maybe_unused]] uint64_t shared_bytes,
                                 [[maybe_unused]] const LaunchShape& launch,
                                 [[maybe_unused]] Kernels... kernels) {
#if defined(__CUDACC__)
  const target::ResidentKernel resident[] = {{kernels, shared_bytes}...};
  return target::max_resident_blocks(resident, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}
template <FixedShape Fixed>
Result<int> max_resident_slotted_combine(const EpShape&, const LaunchShape& launch) {
  return max_resident_combine(kCombineSharedBytes, launch, &combine_async_kernel<Fixed, StoreWeighted>,
                              &combine_async_kernel<Fixed, StoreUnreduced>,
                              &combine_wait_kernel<Fixed, StoreWeighted>,
                              &combine_wait_kernel<Fixed, StoreUnreduced>,
                              &combine_kernel<Fixed, StoreWeighted>, &combine_kernel<Fixed, StoreUnreduced>);
}
template <FixedShape Fixed>
Result<int> max_resident_direct_combine(const EpShape&, const LaunchShape& launch) {
  return max_resident_combine(
      kDirectCombineBytes, launch, &direct_combine_async_kernel<Fixed, StoreWeighted>,
      &direct_combine_async_kernel<Fixed, StoreUnreduced>, &direct_combine_wait_kernel<Fixed, StoreWeighted>,
      &direct_combine_wait_kernel<Fixed, StoreUnreduced>, &direct_combine_kernel<Fixed, StoreWeighted>,
      &direct_combine_kernel<Fixed, StoreUnreduced>);
}

// The others are loaded when max_resident_blocks looks at them.
inline Status load_plain_kernels() {
#if defined(__CUDACC__)
  const target::ResidentKernel kernels[] = {
      {&topk_softmax_kernel, 0}, {&grouped_matmul_kernel, 0}, {&stall_kernel, 0}, {&check_output_kernel, 0}};
  SWITCHYARD_RETURN_IF_ERROR(load_silu_mul_kernels());
  SWITCHYARD_RETURN_IF_ERROR(load_recode_rows_kernels());
  return target::max_resident_blocks(kernels, kWarpSize).status();
#else
  return Status();
#endif
}

template <FixedShape Fixed>
constexpr EpKernels make_slotted_kernels() {
  return {
      .dispatch = &slotted_bf16_alone<Fixed>,
      .combine = {.async = &launch_combine<kCombineAsync, combine_async_kernel<Fixed, StoreWeighted>,
                                           combine_async_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes>,
                  .wait = &launch_combine<kCombineWait, combine_wait_kernel<Fixed, StoreWeighted>,
                                          combine_wait_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes>,
                  .fused = &launch_combine<kCombine, combine_kernel<Fixed, StoreWeighted>,
                                           combine_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes>,
                  .max_resident_blocks = &max_resident_slotted_combine<Fixed>},
  };
}

template <FixedShape Fixed>
constexpr EpKernels make_direct_kernels() {
  return {
      .dispatch = &direct_bf16_alone<Fixed>,
      .combine =
          {.async = &launch_combine<kCombineAsync, direct_combine_async_kernel<Fixed, StoreWeighted>,
                                    direct_combine_async_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes>,
           .wait = &launch_combine<kCombineWait, direct_combine_wait_kernel<Fixed, StoreWeighted>,
                                   direct_combine_wait_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes>,
           .fused = &launch_combine<kCombine, direct_combine_kernel<Fixed, StoreWeighted>,
                                    direct_combine_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes>,
           .max_resident_blocks = &max_resident_direct_combine<Fixed>},
  };
}

// Dispatch of bf16 only.
template <FixedShape Slotted, FixedShape Direct>
constexpr KernelTable make_kernel_table() {
  return {
      .load = &load_plain_kernels,
      .slotted = make_slotted_kernels<Slotted>(),
      .direct = make_direct_kernels<Direct>(),
      .topk_softmax = &launch_plain<kTopkSoftmax, TopkSoftmaxParams, topk_softmax_kernel>,
      .grouped_matmul = &launch_plain<kGroupedMatmul, GroupedMatmulParams, grouped_matmul_kernel>,
      .silu_mul = &launch_silu_mul,
      .recode_rows = &launch_recode_rows,
      .stall = &launch_plain<kStall, StallParams, stall_kernel>,
      .check_output = &launch_plain<kCheckOutput, CheckOutputParams, check_output_kernel>,
  };
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
