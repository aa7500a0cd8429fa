// Instantiates every kernel for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "switchyard/transport/kernel_table.hpp"

#include "switchyard/ep/direct/kernels.hpp"
#include "switchyard/ep/kernels.hpp"
#include "switchyard/ep/topk_softmax.hpp"
#include "switchyard/format/bf16.hpp"
#include "switchyard/gemm/grouped_matmul.hpp"
#include "switchyard/gemm/silu_mul.hpp"
#include "switchyard/sync/stall.hpp"

namespace switchyard {
namespace {

// Kernel names as template arguments: the emulator and launch errors say them.
constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait",
               kDispatch[] = "dispatch";
constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait", kCombine[] = "combine";
constexpr char kTopkSoftmax[] = "topk_softmax", kGroupedMatmul[] = "grouped_matmul", kSiluMul[] = "silu_mul";
constexpr char kStall[] = "stall";

LaunchShape with_shared(LaunchShape shape, uint64_t shared_bytes) {
  shape.shared_bytes = shared_bytes;
  return shape;
}

using Format = BF16TokenFormat;

// The dynamic shared memory of each kernel.
uint64_t slotted_dispatch_bytes(const Format& format, const EpShape& shape, const LaunchShape&) {
  return dispatch_shared_bytes(MessageLayout{format.encoded_bytes(), shape.top_k}.bytes());
}
// All there is, or half of it: a dependent launch is on a multiprocessor together with its predecessor. A
// multiprocessor keeps 1 KB of every block for itself.
uint64_t direct_dispatch_bytes(const Format& format, const EpShape&, const LaunchShape& launch) {
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

constexpr EpKernels kSlotted{
    .dispatch_async =
        &launch_dispatch<kDispatchAsync, dispatch_async_kernel<RunTimeShape, Format>, slotted_dispatch_bytes>,
    .dispatch_wait =
        &launch_dispatch<kDispatchWait, dispatch_wait_kernel<RunTimeShape, Format>, slotted_dispatch_bytes>,
    .dispatch = &launch_dispatch<kDispatch, dispatch_kernel<RunTimeShape, Format>, slotted_dispatch_bytes>,
    .combine_async = &launch_combine<kCombineAsync, combine_async_kernel<RunTimeShape, StoreWeighted>,
                                     combine_async_kernel<RunTimeShape, StoreUnreduced>, kCombineSharedBytes>,
    .combine_wait = &launch_combine<kCombineWait, combine_wait_kernel<RunTimeShape, StoreWeighted>,
                                    combine_wait_kernel<RunTimeShape, StoreUnreduced>, kCombineSharedBytes>,
    .combine = &launch_combine<kCombine, combine_kernel<RunTimeShape, StoreWeighted>,
                               combine_kernel<RunTimeShape, StoreUnreduced>, kCombineSharedBytes>,
    .max_resident_blocks = &max_resident_blocks<dispatch_kernel<RunTimeShape, Format>,
                                                combine_kernel<RunTimeShape, StoreWeighted>,
                                                slotted_dispatch_bytes, kCombineSharedBytes>,
};

constexpr uint64_t kDirectCombineBytes = sizeof(DirectCombineShared);
constexpr EpKernels kDirect{
    .dispatch_async = &launch_dispatch<kDispatchAsync, direct_dispatch_async_kernel<RunTimeShape, Format>,
                                       direct_dispatch_bytes>,
    .dispatch_wait = &launch_dispatch<kDispatchWait, direct_dispatch_wait_kernel<RunTimeShape, Format>,
                                      direct_dispatch_bytes>,
    .dispatch =
        &launch_dispatch<kDispatch, direct_dispatch_kernel<RunTimeShape, Format>, direct_dispatch_bytes>,
    .combine_async =
        &launch_combine<kCombineAsync, direct_combine_async_kernel<RunTimeShape, StoreWeighted>,
                        direct_combine_async_kernel<RunTimeShape, StoreUnreduced>, kDirectCombineBytes>,
    .combine_wait =
        &launch_combine<kCombineWait, direct_combine_wait_kernel<RunTimeShape, StoreWeighted>,
                        direct_combine_wait_kernel<RunTimeShape, StoreUnreduced>, kDirectCombineBytes>,
    .combine = &launch_combine<kCombine, direct_combine_kernel<RunTimeShape, StoreWeighted>,
                               direct_combine_kernel<RunTimeShape, StoreUnreduced>, kDirectCombineBytes>,
    .max_resident_blocks = &max_resident_blocks<direct_dispatch_kernel<RunTimeShape, Format>,
                                                direct_combine_kernel<RunTimeShape, StoreWeighted>,
                                                direct_dispatch_bytes, kDirectCombineBytes>,
};

constexpr KernelTable kTable{
    .slotted = kSlotted,
    .direct = kDirect,
    .topk_softmax = &launch_plain<kTopkSoftmax, TopkSoftmaxParams, topk_softmax_kernel>,
    .grouped_matmul = &launch_plain<kGroupedMatmul, GroupedMatmulParams, grouped_matmul_kernel>,
    .silu_mul = &launch_plain<kSiluMul, SiluMulParams, silu_mul_kernel>,
    .stall = &launch_plain<kStall, StallParams, stall_kernel>,
};

}  // namespace

#if defined(__CUDACC__)
const KernelTable& cuda_kernel_table() { return kTable; }
#else
const KernelTable& host_kernel_table() { return kTable; }
#endif

}  // namespace switchyard
