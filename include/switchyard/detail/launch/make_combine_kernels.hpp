// Instantiates the combine kernels of one protocol and one format of the rows for the target this file is
// compiled for.
#pragma once

#include "switchyard/detail/ep/kernels.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait",
                      kCombine[] = "combine";

template <EpProtocol P, typename Epilogue>
using CombineKernel = void (*)(CombineParamsOf<P, Epilogue>);

// The dynamic shared memory of a combine.
template <EpProtocol P, FixedShape Fixed, typename Rows>
uint64_t combine_bytes(const LaunchShape& shape) {
  return P::template combine_shared_bytes<Fixed, Rows>(static_cast<int>(shape.num_threads) / kWarpSize);
}

template <const char* kName, EpProtocol P, FixedShape Fixed, typename Rows, typename Epilogue,
          CombineKernel<P, Epilogue> kKernel>
Status launch_combine_kernel(const LaunchShape& shape, StreamHandle stream, const CombineCall& call,
                             const Epilogue& epilogue) {
  return target::launch(
      kName, kKernel, with_shared(shape, combine_bytes<P, Fixed, Rows>(shape)), stream,
      CombineParamsOf<P, Epilogue>{call.step, std::get<typename P::CombinePart>(call.parts), epilogue});
}

// Elements from an output to the next.
inline int32_t output_stride(const CombineCall& call) {
  const uint64_t stride_bytes = call.destination.output_stride_bytes;
  return stride_bytes == 0 ? call.step.shape.hidden : static_cast<int32_t>(stride_bytes / sizeof(bf16));
}

// The kernel of the epilogue that the destination asks for.
template <const char* kName, EpProtocol P, FixedShape Fixed, typename Rows,
          CombineKernel<P, StoreWeighted> kWeighted, CombineKernel<P, StoreUnreduced> kUnreduced>
Status launch_combine_to(const LaunchShape& shape, StreamHandle stream, const CombineCall& call) {
  const CombineDestination& destination = call.destination;
  const int32_t stride = output_stride(call);
  if (destination.reduction == CombineReduction::kUnreduced)
    return launch_combine_kernel<kName, P, Fixed, Rows, StoreUnreduced, kUnreduced>(
        shape, stream, call, {destination.output, stride});
  return launch_combine_kernel<kName, P, Fixed, Rows, StoreWeighted, kWeighted>(shape, stream, call,
                                                                                {destination.output, stride});
}

template <EpProtocol P, FixedShape Fixed, typename Rows, typename... Epilogues>
Result<int> max_resident_combine(const EpShape&, [[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  const uint64_t bytes = combine_bytes<P, Fixed, Rows>(launch);
  const target::ResidentKernel kernels[] = {{&return_rows_kernel<P, Fixed, Epilogues, Rows>, bytes}...,
                                            {&combine_wait_kernel<P, Fixed, Epilogues, Rows>, bytes}...,
                                            {&combine_kernel<P, Fixed, Epilogues, Rows>, bytes}...};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}

template <EpProtocol P, FixedShape Fixed, typename Rows>
inline constexpr CombineKernels kCombineKernels = {
    .async =
        &launch_combine_to<kCombineAsync, P, Fixed, Rows, &return_rows_kernel<P, Fixed, StoreWeighted, Rows>,
                           &return_rows_kernel<P, Fixed, StoreUnreduced, Rows>>,
    .wait =
        &launch_combine_to<kCombineWait, P, Fixed, Rows, &combine_wait_kernel<P, Fixed, StoreWeighted, Rows>,
                           &combine_wait_kernel<P, Fixed, StoreUnreduced, Rows>>,
    .fused = &launch_combine_to<kCombine, P, Fixed, Rows, &combine_kernel<P, Fixed, StoreWeighted, Rows>,
                                &combine_kernel<P, Fixed, StoreUnreduced, Rows>>,
    .max_resident_blocks = &max_resident_combine<P, Fixed, Rows, StoreWeighted, StoreUnreduced>,
};

// The combine that begins while experts still work: weighted, in bf16.
template <FixedShape Fixed>
Status launch_early_combine(const LaunchShape& shape, StreamHandle stream, const CombineCall& call) {
  return launch_combine_kernel<kCombine, Direct, Early<Fixed>, BF16CombineRows, StoreWeighted,
                               &early_combine_kernel<Direct, Early<Fixed>, StoreWeighted>>(
      shape, stream, call, {call.destination.output, output_stride(call)});
}
template <FixedShape Fixed>
Result<int> max_resident_early_combine([[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  const target::ResidentKernel kernels[] = {{&early_combine_kernel<Direct, Early<Fixed>, StoreWeighted>,
                                             combine_bytes<Direct, Early<Fixed>, BF16CombineRows>(launch)}};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}
template <FixedShape Fixed>
inline constexpr EarlyCombineKernel kEarlyCombine = {&launch_early_combine<Fixed>,
                                                     &max_resident_early_combine<Fixed>};

// These have files of their own, since they take long to compile.
template <EpProtocol P, FixedShape Fixed>
const CombineKernels& fp8_combine_kernels();
template <EpProtocol P>
const CombineKernels& wired_bf16_combine_kernels();
template <FixedShape Fixed, typename Rows>
const CombineKernels& linked_combine_kernels();  // that of RunTimeShape in bf16 is with the others

}  // namespace switchyard::inline SWITCHYARD_TARGET
