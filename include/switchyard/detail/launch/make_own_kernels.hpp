// Instantiates the kernels of a token format or of an epilogue that an application brings, for the target
// this file is compiled for. own_kernels.hpp has the concepts that the types satisfy.
#pragma once

#include "switchyard/detail/launch/make_combine_kernels.hpp"
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"
#include "switchyard/detail/launch/own_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <DispatchFormat Format>
Status check_own([[maybe_unused]] int hidden) {
  if constexpr (requires { Format::check(hidden); })
    return Format::check(hidden);
  else
    return Status();
}

template <DispatchFormat Format>
FormatLayout layout_of_own(int hidden) {
  const Format format = Format::make(hidden, FormatTensors{});
  return {.name = Format::kName,
          .encoded_bytes = format.encoded_bytes(),
          .row_bytes = format.row_bytes(),
          .scales_bytes = format.scales_bytes(),
          .row_alignment = format.row_alignment(),
          .encodes_by_expert = EncodesByExpert<Format>,
          .interleaves_rows = InterleavedTokenFormat<Format>,
          .has_tiled_scales = false};
}

template <DispatchFormat Format>
CheckedSize scale_tensor_bytes_of_own(uint32_t max_rows, int hidden) {
  const Format format = Format::make(hidden, FormatTensors{});
  if constexpr (requires { format.scale_tensor_bytes(max_rows); }) {
    return CheckedSize(format.scale_tensor_bytes(max_rows));
  } else {
    static_assert(!InterleavedTokenFormat<Format>,
                  "say how large the tensor is: scale_tensor_bytes(max_rows)");
    return CheckedSize(max_rows) * CheckedSize(format.scales_bytes());
  }
}

template <FixedShape Fixed, DispatchFormat Format>
constexpr OwnFormat::Kernels own_dispatch() {
  OwnFormat::Kernels kernels{&kDispatchKernels<Slotted, Fixed, Format>, nullptr, nullptr};
  if constexpr (DirectFormat<Format>) {
    kernels.direct = &kDispatchKernels<Direct, Fixed, Format>;
    kernels.linked = &kLinkedDispatchKernels<Fixed, Format>;
  }
  return kernels;
}

template <DispatchFormat Format>
inline constexpr OwnFormat kOwnFormat = {
    .target = kThisTarget,
    .check = &check_own<Format>,
    .layout = &layout_of_own<Format>,
    .scale_tensor_bytes = &scale_tensor_bytes_of_own<Format>,
    .near = own_dispatch<RunTimeShape, Format>(),
    .wired = own_dispatch<WiredShape, Format>(),
};

template <const char* kName, EpProtocol P, FixedShape Fixed, typename Rows, typename Epilogue,
          CombineKernel<P, Epilogue> kKernel>
Status launch_own_combine(const LaunchShape& shape, StreamHandle stream, const CombineCall& call) {
  return launch_combine_kernel<kName, P, Fixed, Rows, Epilogue, kKernel>(
      shape, stream, call, *static_cast<const Epilogue*>(call.destination.epilogue));
}

template <EpProtocol P, FixedShape Fixed, typename Rows, typename Epilogue>
inline constexpr CombineKernels kOwnCombine = {
    .async = nullptr,
    .wait = &launch_own_combine<kCombineWait, P, Fixed, Rows, Epilogue,
                                &combine_wait_kernel<P, Fixed, Epilogue, Rows>>,
    .fused =
        &launch_own_combine<kCombine, P, Fixed, Rows, Epilogue, &combine_kernel<P, Fixed, Epilogue, Rows>>,
    .max_resident_blocks = &max_resident_combine<P, Fixed, Rows, Epilogue>,
};

template <EpProtocol P, FixedShape Fixed, typename Epilogue>
inline constexpr OwnEpilogue::Kernels kOwnCombineKernels = {kOwnCombine<P, Fixed, BF16CombineRows, Epilogue>,
                                                            kOwnCombine<P, Fixed, FP8CombineRows, Epilogue>};

template <CombineEpilogue Epilogue>
inline constexpr OwnEpilogue kOwnEpilogue = {
    .target = kThisTarget,
    .near = {kOwnCombineKernels<Slotted, RunTimeShape, Epilogue>,
             kOwnCombineKernels<Direct, RunTimeShape, Epilogue>,
             kOwnCombineKernels<Direct, Linked<RunTimeShape>, Epilogue>},
    .wired = {kOwnCombineKernels<Slotted, WiredShape, Epilogue>,
              kOwnCombineKernels<Direct, WiredShape, Epilogue>,
              kOwnCombineKernels<Direct, Linked<WiredShape>, Epilogue>},
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
