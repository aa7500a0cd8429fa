// Instantiates the dispatch kernels of one protocol and one token format for the target this file is compiled
// for.
#pragma once

#include "switchyard/detail/ep/kernels.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Kernel names as template arguments: the emulator and launch errors say them.
inline constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait",
                      kDispatch[] = "dispatch";

template <EpProtocol P, typename Format>
using DispatchKernel = void (*)(DispatchParamsOf<P, Format>);

template <const char* kName, EpProtocol P, typename Format, DispatchKernel<P, Format> kKernel>
Status launch_dispatch_kernel(const LaunchShape& shape, StreamHandle stream, const DispatchCall& call) {
  const EpShape& ep_shape = call.step.shape;
  const DispatchParamsOf<P, Format> params{call.step, std::get<typename P::DispatchPart>(call.parts),
                                           Format::make(ep_shape.hidden, call.tensors)};
  return target::launch(kName, kKernel,
                        with_shared(shape, P::dispatch_shared_bytes(params.format, ep_shape, shape)), stream,
                        params);
}

template <EpProtocol P, FixedShape Fixed, typename Format>
Result<int> max_resident_dispatch([[maybe_unused]] const EpShape& shape,
                                  [[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  const uint64_t bytes = P::dispatch_shared_bytes(Format::make(shape.hidden, {}), shape, launch);
  const target::ResidentKernel kernels[] = {{&dispatch_async_kernel<P, Fixed, Format>, bytes},
                                            {&receive_rows_kernel<P, Fixed, Format>, bytes},
                                            {&dispatch_kernel<P, Fixed, Format>, bytes}};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}

template <EpProtocol P, FixedShape Fixed, typename Format>
inline constexpr DispatchKernels kDispatchKernels = {
    .async = &launch_dispatch_kernel<kDispatchAsync, P, Format, &dispatch_async_kernel<P, Fixed, Format>>,
    .wait = &launch_dispatch_kernel<kDispatchWait, P, Format, &receive_rows_kernel<P, Fixed, Format>>,
    .fused = &launch_dispatch_kernel<kDispatch, P, Format, &dispatch_kernel<P, Fixed, Format>>,
    .max_resident_blocks = &max_resident_dispatch<P, Fixed, Format>,
};

// Those that link rows, of the direct protocol.
template <FixedShape Fixed, typename Format>
inline constexpr DispatchKernels kLinkedDispatchKernels = kDispatchKernels<Direct, Linked<Fixed>, Format>;

}  // namespace switchyard::inline SWITCHYARD_TARGET
