// The all-reduce of the target this file is compiled for.
#pragma once

#include "switchyard/detail/ep/all_reduce.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed>
Status launch_all_reduce(const LaunchShape& shape, StreamHandle stream, const AllReduceParams& params) {
  return target::launch("all_reduce", all_reduce_kernel<Fixed>, with_shared(shape, sizeof(AllReduceShared)),
                        stream, params);
}

template <FixedShape Fixed>
Result<int> max_resident_all_reduce([[maybe_unused]] const LaunchShape& launch) {
#if defined(__CUDACC__)
  const target::ResidentKernel kernels[] = {{&all_reduce_kernel<Fixed>, sizeof(AllReduceShared)}};
  return target::max_resident_blocks(kernels, static_cast<int>(launch.num_threads));
#else
  return kMaxResidentOnHost;
#endif
}

template <FixedShape Fixed>
inline constexpr AllReduceKernel kAllReduce = {&launch_all_reduce<Fixed>, &max_resident_all_reduce<Fixed>};

}  // namespace switchyard::inline SWITCHYARD_TARGET
