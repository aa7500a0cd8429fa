// Instantiates the dispatch kernels of one token format for the target this file is compiled for.
#pragma once

#include "switchyard/detail/ep/direct/kernels.hpp"
#include "switchyard/detail/ep/slotted/kernels.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"
#include "switchyard/detail/launch/make_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Kernel names as template arguments: the emulator and launch errors say them.
inline constexpr char kDispatchAsync[] = "dispatch_async", kDispatchWait[] = "dispatch_wait",
                      kDispatch[] = "dispatch";

// The dynamic shared memory of a dispatch.
template <typename Format>
uint64_t slotted_dispatch_bytes(const Format& format, const EpShape& shape, const LaunchShape&) {
  return dispatch_shared_bytes(MessageLayout{format.encoded_bytes(), shape.top_k}.bytes());
}
// All there is, or half of it: a dependent launch is on a multiprocessor together with its predecessor. A
// multiprocessor keeps 1 KB of every block for itself.
template <typename Format>
uint64_t direct_dispatch_bytes(const Format& format, const EpShape& shape, const LaunchShape& launch) {
  constexpr uint64_t kReservedBytes = 1024;
  return DirectDispatchShared::bytes(
      format, shape.hidden,
      launch.programmatic_dependent ? (kMaxSharedBytes - kReservedBytes) / 2 : kMaxSharedBytes);
}
template <typename Format>
using DispatchBytes = uint64_t (*)(const Format&, const EpShape&, const LaunchShape&);

template <const char* kName, typename Format, void (*kKernel)(DispatchParams<Format>),
          DispatchBytes<Format> kSharedBytes>
Status launch_dispatch(const LaunchShape& shape, StreamHandle stream, const DispatchArguments& arguments,
                       const FormatTensors& tensors) {
  const DispatchParams<Format> params{
      arguments, make_format(std::type_identity<Format>{}, arguments.shape.hidden, tensors)};
  const uint64_t shared_bytes = kSharedBytes(params.format, arguments.shape, shape);
  return target::launch(kName, kKernel, with_shared(shape, shared_bytes), stream, params);
}

template <typename Format, void (*kAsync)(DispatchParams<Format>), void (*kWait)(DispatchParams<Format>),
          void (*kFused)(DispatchParams<Format>), DispatchBytes<Format> kSharedBytes>
Result<int> max_resident_dispatch([[maybe_unused]] const EpShape& shape,
                                  [[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  const uint64_t bytes =
      kSharedBytes(make_format(std::type_identity<Format>{}, shape.hidden, {}), shape, launch);
  const target::ResidentKernel kernels[] = {{kAsync, bytes}, {kWait, bytes}, {kFused, bytes}};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}

template <typename Format, void (*kAsync)(DispatchParams<Format>), void (*kWait)(DispatchParams<Format>),
          void (*kFused)(DispatchParams<Format>), DispatchBytes<Format> kSharedBytes>
inline constexpr DispatchKernels kDispatchKernels = {
    .async = &launch_dispatch<kDispatchAsync, Format, kAsync, kSharedBytes>,
    .wait = &launch_dispatch<kDispatchWait, Format, kWait, kSharedBytes>,
    .fused = &launch_dispatch<kDispatch, Format, kFused, kSharedBytes>,
    .max_resident_blocks = &max_resident_dispatch<Format, kAsync, kWait, kFused, kSharedBytes>,
};
template <FixedShape Fixed, typename Format>
inline constexpr const DispatchKernels& kSlottedDispatch =
    kDispatchKernels<Format, dispatch_async_kernel<Fixed, Format>, dispatch_wait_kernel<Fixed, Format>,
                     dispatch_kernel<Fixed, Format>, slotted_dispatch_bytes<Format>>;
template <FixedShape Fixed, typename Format>
inline constexpr const DispatchKernels& kDirectDispatch =
    kDispatchKernels<Format, direct_dispatch_async_kernel<Fixed, Format>,
                     direct_dispatch_wait_kernel<Fixed, Format>, direct_dispatch_kernel<Fixed, Format>,
                     direct_dispatch_bytes<Format>>;

template <FixedShape Fixed>
const DispatchKernels* slotted_bf16_alone(TokenFormatKind format) {
  return format == TokenFormatKind::kBF16 ? &kSlottedDispatch<Fixed, BF16TokenFormat> : nullptr;
}
template <FixedShape Fixed>
const DispatchKernels* direct_bf16_alone(TokenFormatKind format) {
  return format == TokenFormatKind::kBF16 ? &kDirectDispatch<Fixed, BF16TokenFormat> : nullptr;
}

// Both protocols' dispatch of one format.
struct FormatKernels {
  const DispatchKernels* slotted;
  const DispatchKernels* direct;
};
template <TokenFormatKind kKind, typename Format>
constexpr FormatKernels format_kernels() {
  // The runtime lays memory out by what it knows of the kind.
  static_assert(info_of(kKind).encodes_by_expert == EncodesByExpert<Format>);
  static_assert(info_of(kKind).interleaves_rows() == InterleavedTokenFormat<Format>);
  return {&kSlottedDispatch<RunTimeShape, Format>, &kDirectDispatch<RunTimeShape, Format>};
}

// The formats that have a file of their own, since each takes its time to compile.
FormatKernels blockwise_fp8_kernels(TokenFormatKind format);
FormatKernels mx_kernels(TokenFormatKind format);
FormatKernels tiled_kernels(TokenFormatKind format);

}  // namespace switchyard::inline SWITCHYARD_TARGET
