// Token formats and combine epilogues of one's own, with all that ExpertParallel does. A file that includes
// this instantiates the library's kernels for a caller's type, for the target that the file is compiled for:
// the CPU, or CUDA where nvcc compiles it.
//
//   config.own_format = own_format<MyFormat>();        // ExpertParallelConfig
//   config.own_epilogue = own_epilogue<MyEpilogue>();
//   ep->combine(rank, input, {ids, weights, num_tokens, own_destination(MyEpilogue{..})});
//
// Ownership. What own_format() and own_epilogue() return lives as long as the program. A format is made anew
//   for every launch, over the tensors of that call; an epilogue is copied into the launch, so that it need
//   not outlive the call, but what it points to must be valid until the step has ended.
// Threads. Formats and epilogues run inside kernels: many threads of many blocks call them at once.
// Errors. A type that lacks something does not compile, and the concepts below say what. Kernels of another
//   target than the world's, and a protocol that cannot carry the format, are errors of create().
#pragma once

#include <concepts>
#include <type_traits>

#include "switchyard/detail/launch/make_combine_kernels.hpp"
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"
#include "switchyard/detail/launch/own_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// What a format has beyond a TokenFormat or an ExpertTokenFormat (token_format.hpp). It is a
// DirectFormat, too, if the direct protocol is to carry it.
template <typename Format>
concept OwnTokenFormat = DispatchFormat<Format> && std::is_trivially_copyable_v<Format> &&
    std::same_as<typename Format::Input, bf16> &&
    requires(const Format format, int hidden, const FormatTensors& tensors) {
  { Format::kName } -> std::convertible_to<const char*>;  // for errors
  // The format over the tensors of a DispatchOutput; these are null where only sizes are asked for.
  { Format::make(hidden, tensors) } -> std::same_as<Format>;
  { format.row_bytes() } -> std::convertible_to<uint32_t>;
  // Of a row's scales, 0 if there are none. The tensor is [max_rows][scales_bytes()], unless the format says
  // scale_tensor_bytes(max_rows).
  { format.scales_bytes() } -> std::convertible_to<uint32_t>;
};

template <OwnTokenFormat Format>
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

template <OwnTokenFormat Format>
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

template <OwnTokenFormat Format>
constexpr const DispatchKernels* own_direct_dispatch() {
  if constexpr (DirectFormat<Format>)
    return &kDispatchKernels<Direct, RunTimeShape, Format>;
  else
    return nullptr;
}

template <OwnTokenFormat Format>
inline constexpr OwnFormat kOwnFormat = {
    .target = kThisTarget,
    .layout = &layout_of_own<Format>,
    .scale_tensor_bytes = &scale_tensor_bytes_of_own<Format>,
    .slotted = &kDispatchKernels<Slotted, RunTimeShape, Format>,
    .direct = own_direct_dispatch<Format>(),
};

// For ExpertParallelConfig::own_format.
template <OwnTokenFormat Format>
const OwnFormat* own_format() {
  return &kOwnFormat<Format>;
}

// What combine_wait calls for eight columns of a token's weighted sum, in fp32 before any rounding.
template <typename Epilogue>
concept OwnCombineEpilogue = CombineEpilogue<Epilogue> && std::is_trivially_copyable_v<Epilogue>;

template <const char* kName, EpProtocol P, typename Rows, typename Epilogue,
          CombineKernel<P, Epilogue> kKernel>
Status launch_own_combine(const LaunchShape& shape, StreamHandle stream, const CombineCall& call) {
  return launch_combine_kernel<kName, P, RunTimeShape, Rows, Epilogue, kKernel>(
      shape, stream, call, *static_cast<const Epilogue*>(call.destination.epilogue));
}

template <EpProtocol P, typename Rows, typename Epilogue>
inline constexpr CombineKernels kOwnCombine = {
    .async = nullptr,
    .wait = &launch_own_combine<kCombineWait, P, Rows, Epilogue,
                                &combine_wait_kernel<P, RunTimeShape, Epilogue, Rows>>,
    .fused =
        &launch_own_combine<kCombine, P, Rows, Epilogue, &combine_kernel<P, RunTimeShape, Epilogue, Rows>>,
    .max_resident_blocks = &max_resident_combine<P, RunTimeShape, Rows, Epilogue>,
};

template <OwnCombineEpilogue Epilogue>
inline constexpr OwnEpilogue kOwnEpilogue = {
    .target = kThisTarget,
    .slotted = {kOwnCombine<Slotted, BF16CombineRows, Epilogue>,
                kOwnCombine<Slotted, FP8CombineRows, Epilogue>},
    .direct = {kOwnCombine<Direct, BF16CombineRows, Epilogue>, kOwnCombine<Direct, FP8CombineRows, Epilogue>},
};

// For ExpertParallelConfig::own_epilogue.
template <OwnCombineEpilogue Epilogue>
const OwnEpilogue* own_epilogue() {
  return &kOwnEpilogue<Epilogue>;
}

// For CombineOutput::destination. The epilogue must live until the call has returned.
template <OwnCombineEpilogue Epilogue>
CombineDestination own_destination(const Epilogue& epilogue) {
  return {.reduction = CombineReduction::kOwnEpilogue,
          .output = nullptr,
          .epilogue = &epilogue,
          .epilogue_kernels = &kOwnEpilogue<Epilogue>};
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
