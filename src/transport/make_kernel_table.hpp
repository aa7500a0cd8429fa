// Instantiates every kernel for the target this file is compiled for and a shape: kernel_table.cpp for the
// shape the library ships, a test for kernels of its own.
#pragma once

#include "switchyard/ep/direct/kernels.hpp"
#include "switchyard/ep/kernels.hpp"
#include "switchyard/ep/topk_softmax.hpp"
#include "switchyard/format/bf16.hpp"
#include "switchyard/gemm/grouped_matmul.hpp"
#include "switchyard/gemm/silu_mul.hpp"
#include "switchyard/sync/stall.hpp"
#include "switchyard/transport/kernel_table.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Kernel names as template arguments: the emulator and launch errors say them.
inline constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait",
                      kDispatch[] = "dispatch";
inline constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait",
                      kCombine[] = "combine";
inline constexpr char kTopkSoftmax[] = "topk_softmax", kGroupedMatmul[] = "grouped_matmul",
                      kSiluMul[] = "silu_mul";
inline constexpr char kStall[] = "stall";

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

// Blocks that fit on the current device at once; the fused kernels need the most.
#if defined(__CUDACC__)
template <void (*kDispatch)(DispatchParams<Format>), void (*kCombine)(CombineParams<StoreWeighted>),
          DispatchBytes kDispatchBytes, uint64_t kCombineBytes>
Result<int> max_resident_blocks(const EpShape& shape, const LaunchShape& launch) {
  const int num_threads = static_cast<int>(launch.num_threads);
  int device = 0, num_multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  int dispatch_blocks = 0, combine_blocks = 0;
  const uint64_t dispatch_bytes = kDispatchBytes(Format{shape.hidden, nullptr}, shape, launch);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kDispatch, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(dispatch_bytes));
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&dispatch_blocks, kDispatch, num_threads,
                                                          dispatch_bytes);
  if (error == cudaSuccess)
    error =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&combine_blocks, kCombine, num_threads, kCombineBytes);
  if (error != cudaSuccess) return internal_error("occupancy of the kernels: %s", cudaGetErrorString(error));
  return num_multiprocessors * (dispatch_blocks < combine_blocks ? dispatch_blocks : combine_blocks);
}
#else
// The emulator takes any number; this one keeps a slip of the pen from taking all memory for stacks.
template <void (*)(DispatchParams<Format>), void (*)(CombineParams<StoreWeighted>), DispatchBytes, uint64_t>
Result<int> max_resident_blocks(const EpShape&, const LaunchShape&) {
  return 4096;
}
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
      .max_resident_blocks =
          &max_resident_blocks<dispatch_kernel<Fixed, Format>, combine_kernel<Fixed, StoreWeighted>,
                               slotted_dispatch_bytes, kCombineSharedBytes>,
  };
}

inline constexpr uint64_t kDirectCombineBytes = sizeof(DirectCombineShared);

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
      .max_resident_blocks = &max_resident_blocks<direct_dispatch_kernel<Fixed, Format>,
                                                  direct_combine_kernel<Fixed, StoreWeighted>,
                                                  direct_dispatch_bytes, kDirectCombineBytes>,
  };
}

template <FixedShape Slotted, FixedShape Direct>
constexpr KernelTable make_kernel_table() {
  return {
      .slotted = make_slotted_kernels<Slotted>(),
      .direct = make_direct_kernels<Direct>(),
      .topk_softmax = &launch_plain<kTopkSoftmax, TopkSoftmaxParams, topk_softmax_kernel>,
      .grouped_matmul = &launch_plain<kGroupedMatmul, GroupedMatmulParams, grouped_matmul_kernel>,
      .silu_mul = &launch_plain<kSiluMul, SiluMulParams, silu_mul_kernel>,
      .stall = &launch_plain<kStall, StallParams, stall_kernel>,
  };
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
