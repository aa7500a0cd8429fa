// Instantiates every kernel for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "switchyard/transport/kernel_table.hpp"

#include "switchyard/ep/kernels.hpp"
#include "switchyard/ep/topk_softmax.hpp"
#include "switchyard/format/bf16.hpp"
#include "switchyard/gemm/grouped_matmul.hpp"
#include "switchyard/gemm/silu_mul.hpp"

namespace switchyard {
namespace {

// Kernel names as template arguments: the emulator and launch errors say them.
constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait", kDispatch[] = "dispatch";
constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait", kCombine[] = "combine";
constexpr char kTopkSoftmax[] = "topk_softmax", kGroupedMatmul[] = "grouped_matmul", kSiluMul[] = "silu_mul";

LaunchShape with_ep_shared(LaunchShape shape) {
  shape.shared_bytes = kEpSharedBytes;
  return shape;
}

template <const char* kName, void (*kKernel)(DispatchParams<BF16TokenFormat>)>
Status launch_dispatch(const LaunchShape& shape, StreamHandle stream, const DispatchArguments& arguments,
                       bf16* output_rows) {
  const DispatchParams<BF16TokenFormat> params{arguments, BF16TokenFormat{arguments.shape.hidden, output_rows}};
  return target::launch(kName, kKernel, with_ep_shared(shape), stream, params);
}

template <const char* kName, void (*kWeighted)(CombineParams<StoreWeighted>),
          void (*kUnreduced)(CombineParams<StoreUnreduced>)>
Status launch_combine(const LaunchShape& shape, StreamHandle stream, const CombineArguments& arguments,
                      const CombineDestination& destination) {
  if (destination.reduction == CombineReduction::kUnreduced)
    return target::launch(kName, kUnreduced, with_ep_shared(shape), stream,
                          CombineParams<StoreUnreduced>{arguments, StoreUnreduced{destination.output}});
  return target::launch(
      kName, kWeighted, with_ep_shared(shape), stream,
      CombineParams<StoreWeighted>{arguments, StoreWeighted{destination.output, arguments.shape.hidden}});
}

template <const char* kName, typename Params, void (*kKernel)(Params)>
Status launch_plain(const LaunchShape& shape, StreamHandle stream, const Params& params) {
  return target::launch(kName, kKernel, shape, stream, params);
}

Result<int> max_resident_blocks([[maybe_unused]] int num_threads) {
#if defined(__CUDACC__)
  int device = 0, num_multiprocessors = 0, blocks_per_multiprocessor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  // The fused weighted combine and the fused dispatch need the most.
  for (const void* kernel : {reinterpret_cast<const void*>(&dispatch_kernel<RunTimeShape, BF16TokenFormat>),
                             reinterpret_cast<const void*>(&combine_kernel<RunTimeShape, StoreWeighted>)}) {
    int blocks = 0;
    if (error == cudaSuccess)
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, num_threads, kEpSharedBytes);
    if (blocks_per_multiprocessor == 0 || blocks < blocks_per_multiprocessor) blocks_per_multiprocessor = blocks;
  }
  if (error != cudaSuccess) return internal_error("occupancy of the kernels: %s", cudaGetErrorString(error));
  return num_multiprocessors * blocks_per_multiprocessor;
#else
  return 4096;
#endif
}

using Format = BF16TokenFormat;

constexpr KernelTable kTable{
    .dispatch_async = &launch_dispatch<kDispatchAsync, dispatch_async_kernel<RunTimeShape, Format>>,
    .dispatch_wait = &launch_dispatch<kDispatchWait, dispatch_wait_kernel<RunTimeShape, Format>>,
    .dispatch = &launch_dispatch<kDispatch, dispatch_kernel<RunTimeShape, Format>>,
    .combine_async = &launch_combine<kCombineAsync, combine_async_kernel<RunTimeShape, StoreWeighted>,
                                     combine_async_kernel<RunTimeShape, StoreUnreduced>>,
    .combine_wait = &launch_combine<kCombineWait, combine_wait_kernel<RunTimeShape, StoreWeighted>,
                                    combine_wait_kernel<RunTimeShape, StoreUnreduced>>,
    .combine = &launch_combine<kCombine, combine_kernel<RunTimeShape, StoreWeighted>,
                               combine_kernel<RunTimeShape, StoreUnreduced>>,
    .topk_softmax = &launch_plain<kTopkSoftmax, TopkSoftmaxParams, topk_softmax_kernel>,
    .grouped_matmul = &launch_plain<kGroupedMatmul, GroupedMatmulParams, grouped_matmul_kernel>,
    .silu_mul = &launch_plain<kSiluMul, SiluMulParams, silu_mul_kernel>,
    .max_resident_blocks = &max_resident_blocks,
};

}  // namespace

#if defined(__CUDACC__)
const KernelTable& cuda_kernel_table() { return kTable; }
#else
const KernelTable& host_kernel_table() { return kTable; }
#endif

}  // namespace switchyard
