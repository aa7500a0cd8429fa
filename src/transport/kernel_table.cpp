// Instantiates every kernel for the target this file is compiled for: as C++ for the host, and through
// kernel_table.cu for CUDA.
#include "switchyard/transport/kernel_table.hpp"

#include "switchyard/ep/kernels.hpp"
#include "switchyard/ep/topk_softmax.hpp"
#include "switchyard/format/bf16.hpp"
#include "switchyard/gemm/grouped_matmul.hpp"
#include "switchyard/gemm/silu_mul.hpp"
#include "switchyard/sync/check_output.hpp"
#include "switchyard/sync/stall.hpp"

namespace switchyard {
namespace {

// Kernel names as template arguments: the emulator and launch errors say them.
constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait",
               kDispatch[] = "dispatch";
constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait", kCombine[] = "combine";
constexpr char kTopkSoftmax[] = "topk_softmax", kGroupedMatmul[] = "grouped_matmul", kSiluMul[] = "silu_mul";
constexpr char kStall[] = "stall", kCheckOutput[] = "check_output";

LaunchShape with_shared(LaunchShape shape, uint64_t shared_bytes) {
  shape.shared_bytes = shared_bytes;
  return shape;
}

uint64_t dispatch_shared_bytes_of(const BF16TokenFormat& format, const EpShape& shape) {
  return dispatch_shared_bytes(MessageLayout{format.encoded_bytes(), shape.top_k}.bytes());
}

template <const char* kName, void (*kKernel)(DispatchParams<BF16TokenFormat>)>
Status launch_dispatch(const LaunchShape& shape, StreamHandle stream, const DispatchArguments& arguments,
                       bf16* output_rows) {
  const DispatchParams<BF16TokenFormat> params{arguments,
                                               BF16TokenFormat{arguments.shape.hidden, output_rows}};
  const uint64_t shared_bytes = dispatch_shared_bytes_of(params.format, arguments.shape);
  return target::launch(kName, kKernel, with_shared(shape, shared_bytes), stream, params);
}

template <const char* kName, void (*kWeighted)(CombineParams<StoreWeighted>),
          void (*kUnreduced)(CombineParams<StoreUnreduced>)>
Status launch_combine(const LaunchShape& shape, StreamHandle stream, const CombineArguments& arguments,
                      const CombineDestination& destination) {
  if (destination.reduction == CombineReduction::kUnreduced)
    return target::launch(kName, kUnreduced, with_shared(shape, kCombineSharedBytes), stream,
                          CombineParams<StoreUnreduced>{arguments, StoreUnreduced{destination.output}});
  return target::launch(
      kName, kWeighted, with_shared(shape, kCombineSharedBytes), stream,
      CombineParams<StoreWeighted>{arguments, StoreWeighted{destination.output, arguments.shape.hidden}});
}

template <const char* kName, typename Params, void (*kKernel)(Params)>
Status launch_plain(const LaunchShape& shape, StreamHandle stream, const Params& params) {
  return target::launch(kName, kKernel, shape, stream, params);
}

using Format = BF16TokenFormat;

#if defined(__CUDACC__)
Result<int> max_resident_blocks(const EpShape& shape, int num_threads) {
  const uint64_t dispatch_bytes = dispatch_shared_bytes_of(Format{shape.hidden, nullptr}, shape);
  const target::ResidentKernel kernels[] = {
      {&dispatch_async_kernel<RunTimeShape, Format>, dispatch_bytes},
      {&dispatch_wait_kernel<RunTimeShape, Format>, dispatch_bytes},
      {&dispatch_kernel<RunTimeShape, Format>, dispatch_bytes},
      {&combine_async_kernel<RunTimeShape, StoreWeighted>, kCombineSharedBytes},
      {&combine_async_kernel<RunTimeShape, StoreUnreduced>, kCombineSharedBytes},
      {&combine_wait_kernel<RunTimeShape, StoreWeighted>, kCombineSharedBytes},
      {&combine_wait_kernel<RunTimeShape, StoreUnreduced>, kCombineSharedBytes},
      {&combine_kernel<RunTimeShape, StoreWeighted>, kCombineSharedBytes},
      {&combine_kernel<RunTimeShape, StoreUnreduced>, kCombineSharedBytes},
  };
  return target::max_resident_blocks(kernels, num_threads);
}
#else
// The emulator takes any number; this one keeps a slip of the pen from taking all memory for stacks.
Result<int> max_resident_blocks(const EpShape&, int) { return 4096; }
#endif

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
    .stall = &launch_plain<kStall, StallParams, stall_kernel>,
    .check_output = &launch_plain<kCheckOutput, CheckOutputParams, check_output_kernel>,
    .max_resident_blocks = &max_resident_blocks,
};

}  // namespace

#if defined(__CUDACC__)
const KernelTable& cuda_kernel_table() { return kTable; }
#else
const KernelTable& host_kernel_table() { return kTable; }
#endif

}  // namespace switchyard
