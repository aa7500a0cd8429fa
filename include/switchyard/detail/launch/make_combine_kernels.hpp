// Instantiates the combine kernels of one format of the rows for the target this file is compiled for.
#pragma once

#include "switchyard/detail/ep/direct/kernels.hpp"
#include "switchyard/detail/ep/slotted/kernels.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

inline constexpr char kCombineAsync[] = "combine_async", kCombineWait[] = "combine_wait",
                      kCombine[] = "combine";

template <typename Epilogue>
using CombineKernel = void (*)(CombineParams<Epilogue>);

// The dynamic shared memory of a combine.
using CombineBytes = uint64_t (*)(int num_warps);
inline int num_warps(const LaunchShape& shape) { return static_cast<int>(shape.num_threads) / kWarpSize; }

template <const char* kName, CombineKernel<StoreWeighted> kWeighted, CombineKernel<StoreUnreduced> kUnreduced,
          CombineBytes kSharedBytes>
Status launch_combine(const LaunchShape& shape, StreamHandle stream, const CombineArguments& arguments,
                      const CombineDestination& destination) {
  const LaunchShape with_bytes = with_shared(shape, kSharedBytes(num_warps(shape)));
  if (destination.reduction == CombineReduction::kUnreduced)
    return target::launch(kName, kUnreduced, with_bytes, stream,
                          CombineParams<StoreUnreduced>{arguments, StoreUnreduced{destination.output}});
  return target::launch(
      kName, kWeighted, with_bytes, stream,
      CombineParams<StoreWeighted>{arguments, StoreWeighted{destination.output, arguments.shape.hidden}});
}

// The six kernels of a protocol's combine, each with both epilogues.
template <template <typename> typename Kernels, CombineBytes kSharedBytes>
Result<int> max_resident_combine(const EpShape&, [[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  using Weighted = Kernels<StoreWeighted>;
  using Unreduced = Kernels<StoreUnreduced>;
  const uint64_t bytes = kSharedBytes(num_warps(launch));
  const target::ResidentKernel kernels[] = {{Weighted::kAsync, bytes}, {Weighted::kWait, bytes},
                                            {Weighted::kFused, bytes}, {Unreduced::kAsync, bytes},
                                            {Unreduced::kWait, bytes}, {Unreduced::kFused, bytes}};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}

template <template <typename> typename Kernels, CombineBytes kSharedBytes>
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
  static constexpr const CombineKernels& kTable = kCombineKernels<Kernels, &combine_shared_bytes<Rows>>;
};
template <FixedShape Fixed, typename Rows>
struct DirectCombine {
  template <typename Epilogue>
  struct Kernels {
    static constexpr CombineKernel<Epilogue> kAsync = &direct_combine_async_kernel<Fixed, Epilogue, Rows>;
    static constexpr CombineKernel<Epilogue> kWait = &direct_combine_wait_kernel<Fixed, Epilogue, Rows>;
    static constexpr CombineKernel<Epilogue> kFused = &direct_combine_kernel<Fixed, Epilogue, Rows>;
  };
  static constexpr const CombineKernels& kTable = kCombineKernels<Kernels, &DirectCombineShared::bytes<Rows>>;
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
