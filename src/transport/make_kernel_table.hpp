// Instantiates every kernel for the target this file is compiled for and a shape: kernel_table.cpp for the
// shape the library ships, a test for kernels of its own.
#pragma once

#include "launch_silu_mul.hpp"
#include "switchyard/ep/direct/kernels.hpp"
#include "switchyard/ep/slotted/kernels.hpp"
#include "switchyard/ep/topk_softmax.hpp"
#include "switchyard/format/bf16.hpp"
#include "switchyard/gemm/grouped_matmul.hpp"
#include "switchyard/sync/check_output.hpp"
#include "switchyard/sync/stall.hpp"
#include "switchyard/transport/kernel_table.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Kernel names as template arguments: the emulator and launch errors say them.
inline constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait",
                      kDispatch[] = "dispatch";
inline constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait",
                      kCombine[] = "combine";
inline constexpr char kTopkSoftmax[] = "topk_softmax", kGroupedMatmul[] = "grouped_matmul";
inline constexpr char kStall[] = "stall", kCheckOutput[] = "check_output";

inline LaunchShape with_shared(LaunchShape shape, uint64_t shared_bytes) {
  shape.shared_bytes = shared_bytes;
  return shape;
}

using Format = BF16TokenFormat;

// The dynamic shared memory of each kernel.
inline uint64_t slotted_dispatch_bytes(const Format& format, const EpShape& shape, const LaunchShape&) {
  return dispatch_shared_bytes(MessageLayout{format.encoded_bytes(), shape.top_k}.bytes());
}
// All there is, or half of it: a dependent launch is on a multiprocessor together with its predecessor. A
// multiprocessor keeps 1 KB of every block for itself.
inline uint64_t direct_dispatch_bytes(const Format& format, const EpShape&, const LaunchShape& launch) {
  constexpr uint64_t kReservedBytes = 1024;
  return DirectDispatchShared::bytes(format.encoded_bytes(), launch.programmatic_dependent
                                                                 ? (kMaxSharedBytes - kReservedBytes) / 2
                                                                 : kMaxSharedBytes);
}
inline constexpr uint64_t kDirectCombineBytes = sizeof(DirectCombineShared);
using DispatchBytes = uint64_t (*)(const Format&, const EpShape&, const LaunchShape&);

template <const char* kName, void (*kKernel)(DispatchParams<Format>), DispatchBytes kSharedBytes>
Status launch_dispatch(const LaunchShape& shape, StreamHandle stream, const DispatchArguments& arguments,
                       bf16* output_rows) {
  const DispatchParams<Format> params{arguments, Format{arguments.shape.hidden, output_rows}};
  const uint64_t shared_bytes = kSharedBytes(params.format, arguments.shape, shape);
  return target::launch(kName, kKernel, with_shared(shape, shared_bytes), stream, params);
}

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

#if defined(__CUDACC__)
template <FixedShape Fixed>
Result<int> max_resident_slotted(const EpShape& shape, const LaunchShape& launch) {
  const uint64_t dispatch_bytes = slotted_dispatch_bytes(Format{shape.hidden, nullptr}, shape, launch);
  const target::ResidentKernel kernels[] = {
      {&dispatch_async_kernel<Fixed, Format>, dispatch_bytes},
      {&dispatch_wait_kernel<Fixed, Format>, dispatch_bytes},
      {&dispatch_kernel<Fixed, Format>, dispatch_bytes},
      {&combine_async_kernel<Fixed, StoreWeighted>, kCombineSharedBytes},
      {&combine_async_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes},
      {&combine_wait_kernel<Fixed, StoreWeighted>, kCombineSharedBytes},
      {&combine_wait_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes},
      {&combine_kernel<Fixed, StoreWeighted>, kCombineSharedBytes},
      {&combine_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes},
  };
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
}
template <FixedShape Fixed>
Result<int> max_resident_direct(const EpShape& shape, const LaunchShape& launch) {
  const uint64_t dispatch_bytes = direct_dispatch_bytes(Format{shape.hidden, nullptr}, shape, launch);
  const target::ResidentKernel kernels[] = {
      {&direct_dispatch_async_kernel<Fixed, Format>, dispatch_bytes},
      {&direct_dispatch_wait_kernel<Fixed, Format>, dispatch_bytes},
      {&direct_dispatch_kernel<Fixed, Format>, dispatch_bytes},
      {&direct_combine_async_kernel<Fixed, StoreWeighted>, kDirectCombineBytes},
      {&direct_combine_async_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes},
      {&direct_combine_wait_kernel<Fixed, StoreWeighted>, kDirectCombineBytes},
      {&direct_combine_wait_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes},
      {&direct_combine_kernel<Fixed, StoreWeighted>, kDirectCombineBytes},
      {&direct_combine_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes},
  };
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
}
// The others are loaded when max_resident_blocks looks at them.
inline Status load_plain_kernels() {
  const target::ResidentKernel kernels[] = {{&topk_softmax_kernel, 0},
                                            {&grouped_matmul_kernel, 0},
                                            {&silu_mul_kernel, 0},
                                            {&stall_kernel, 0},
                                            {&check_output_kernel, 0}};
  return target::max_resident_blocks(kernels, kWarpSize).status();
}
#else
inline Status load_plain_kernels() { return Status(); }
// The emulator takes any number; this one keeps a slip of the pen from taking all memory for stacks.
inline Result<int> max_resident_on_host(const EpShape&, const LaunchShape&) { return 4096; }
template <FixedShape>
constexpr auto max_resident_slotted = max_resident_on_host;
template <FixedShape>
constexpr auto max_resident_direct = max_resident_on_host;
#endif

template <FixedShape Fixed>
constexpr EpKernels make_slotted_kernels() {
  return {
      .dispatch_async =
          &launch_dispatch<kDispatchAsync, dispatch_async_kernel<Fixed, Format>, slotted_dispatch_bytes>,
      .dispatch_wait =
          &launch_dispatch<kDispatchWait, dispatch_wait_kernel<Fixed, Format>, slotted_dispatch_bytes>,
      .dispatch = &launch_dispatch<kDispatch, dispatch_kernel<Fixed, Format>, slotted_dispatch_bytes>,
      .combine_async = &launch_combine<kCombineAsync, combine_async_kernel<Fixed, StoreWeighted>,
                                       combine_async_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes>,
      .combine_wait = &launch_combine<kCombineWait, combine_wait_kernel<Fixed, StoreWeighted>,
                                      combine_wait_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes>,
      .combine = &launch_combine<kCombine, combine_kernel<Fixed, StoreWeighted>,
                                 combine_kernel<Fixed, StoreUnreduced>, kCombineSharedBytes>,
      .max_resident_blocks = max_resident_slotted<Fixed>,
  };
}

template <FixedShape Fixed>
constexpr EpKernels make_direct_kernels() {
  return {
      .dispatch_async = &launch_dispatch<kDispatchAsync, direct_dispatch_async_kernel<Fixed, Format>,
                                         direct_dispatch_bytes>,
      .dispatch_wait =
          &launch_dispatch<kDispatchWait, direct_dispatch_wait_kernel<Fixed, Format>, direct_dispatch_bytes>,
      .dispatch = &launch_dispatch<kDispatch, direct_dispatch_kernel<Fixed, Format>, direct_dispatch_bytes>,
      .combine_async =
          &launch_combine<kCombineAsync, direct_combine_async_kernel<Fixed, StoreWeighted>,
                          direct_combine_async_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes>,
      .combine_wait = &launch_combine<kCombineWait, direct_combine_wait_kernel<Fixed, StoreWeighted>,
                                      direct_combine_wait_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes>,
      .combine = &launch_combine<kCombine, direct_combine_kernel<Fixed, StoreWeighted>,
                                 direct_combine_kernel<Fixed, StoreUnreduced>, kDirectCombineBytes>,
      .max_resident_blocks = max_resident_direct<Fixed>,
  };
}

template <FixedShape Slotted, FixedShape Direct>
constexpr KernelTable make_kernel_table() {
  return {
      .load = &load_plain_kernels,
      .slotted = make_slotted_kernels<Slotted>(),
      .direct = make_direct_kernels<Direct>(),
      .topk_softmax = &launch_plain<kTopkSoftmax, TopkSoftmaxParams, topk_softmax_kernel>,
      .grouped_matmul = &launch_plain<kGroupedMatmul, GroupedMatmulParams, grouped_matmul_kernel>,
      .silu_mul = &launch_silu_mul,
      .stall = &launch_plain<kStall, StallParams, stall_kernel>,
      .check_output = &launch_plain<kCheckOutput, CheckOutputParams, check_output_kernel>,
  };
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
