// Instantiates the combine kernels of one format of the rows for the target this file is compiled for.
#pragma once

#include "launch_shape.hpp"
#include "switchyard/ep/direct/kernels.hpp"
#include "switchyard/ep/slotted/kernels.hpp"
#include "switchyard/transport/kernel_table.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait",
                      kCombine[] = "combine";

template <typename Epilogue>
using CombineKernel = void (*)(CombineParams<Epilogue>);

template <const char* kName, CombineKernel<StoreWeighted> kWeighted, CombineKernel<StoreUnreduced> kUnreduced,
          uint64_t kSharedBytes>
Status launch_combine(const LaunchShape& shape, StreamHandle stream, const CombineArguments& arguments,
                      const CombineDestination& destination) {
  if (destination.reduction == CombineReduction::kUnreduced)
    return target::launch(kName, kUnreduced, with_shared(shape, kSharedBytes), stream,
                          CombineParams<StoreUnreduced>{arguments, StoreUnreduced{destination.output}});
  return target::launch(
      kName, kWeighted, with_shared(shape, kSharedBytes), stream,
      CombineParams<StoreWeighted>{arguments, StoreWeighted{destination.output, arguments.shape.hidden}});
}

// The six kernels of a protocol's combine, each with both epilogues.
template <template <typename> typename Kernels, uint64_t kSharedBytes>
Result<int> max_resident_combine(const EpShape&, [[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  using Weighted = Kernels<StoreWeighted>;
  using Unreduced = Kernels<StoreUnreduced>;
  const target::ResidentKernel kernels[] = {
      {Weighted::kAsync, kSharedBytes},  {Weighted::kWait, kSharedBytes},  {Weighted::kFused, kSharedBytes},
      {Unreduced::kAsync, kSharedBytes}, {Unreduced::kWait, kSharedBytes}, {Unreduced::kFused, kSharedBytes}};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}

template <template <typename> typename Kernels, uint64_t kSharedBytes>
inline constexpr CombineKernels kCombineKernels = {
    .async = &launch_combine<kCombineAsync, Kernels<StoreWeighted>::kAsync, Kernels<StoreUnreduced>::kAsync,
                             kSharedBytes>,
    .wait = &launch_combine<kCombineWait, Kernels<StoreWeighted>::kWait, Kernels<StoreUnreduced>::kWait,
                            kSharedBytes>,
    .fused = &launch_combine<kCombine, Kernels<StoreWeighted>::kFused, Kernels<StoreUnreduced>::kFused,
                             kSharedBytes>,
    .max_resident_blocks = &max_resident_combine<Kernels, kSharedBytes>,
};

template <FixedShape Fixed, typename Rows>
struct SlottedCombine {
  template <typename Epilogue>
  struct Kernels {
    static constexpr CombineKernel<Epilogue> kAsync = &combine_async_kernel<Fixed, Epilogue, Rows>;
    static constexpr CombineKernel<Epilogue> kWait = &combine_wait_kernel<Fixed, Epilogue, Rows>;
    static constexpr CombineKernel<Epilogue> kFused = &combine_kernel<Fixed, Epilogue, Rows>;
  };
  static constexpr const CombineKernels& kTable = kCombineKernels<Kernels, kCombineSharedBytes>;
};
template <FixedShape Fixed, typename Rows>
struct DirectCombine {
  template <typename Epilogue>
  struct Kernels {
    static constexpr CombineKernel<Epilogue> kAsync = &direct_combine_async_kernel<Fixed, Epilogue, Rows>;
    static constexpr CombineKernel<Epilogue> kWait = &direct_combine_wait_kernel<Fixed, Epilogue, Rows>;
    static constexpr CombineKernel<Epilogue> kFused = &direct_combine_kernel<Fixed, Epilogue, Rows>;
  };
  static constexpr const CombineKernels& kTable = kCombineKernels<Kernels, sizeof(DirectCombineShared)>;
};

template <FixedShape Fixed>
const CombineKernels* slotted_bf16_combine_alone(CombineFormat format) {
  return format == CombineFormat::kBF16 ? &SlottedCombine<Fixed, BF16CombineRows>::kTable : nullptr;
}
template <FixedShape Fixed>
const CombineKernels* direct_bf16_combine_alone(CombineFormat format) {
  return format == CombineFormat::kBF16 ? &DirectCombine<Fixed, BF16CombineRows>::kTable : nullptr;
}

// Have a file of their own, since they take their time to compile.
const CombineKernels& slotted_fp8_combine_kernels();
const CombineKernels& direct_fp8_combine_kernels();

}  // namespace switchyard::inline SWITCHYARD_TARGET
