// Instantiates the kernels for the target this file is compiled for: as C++ for the host, and through
// limits.cu for CUDA.
#include "limits.hpp"

#include "limit_kernels.hpp"

namespace switchyard::benchmarks {

const LimitKernels& cuda_limit_kernels();  // only in builds with CUDA

namespace {

Status launch_scatter(const LaunchShape& shape, StreamHandle stream, const ScatterParams& params) {
  const uint64_t row_bytes = static_cast<uint64_t>(params.hidden) * sizeof(bf16);
  int num_warps = static_cast<int>(shape.num_threads) / kWarpSize;
  if (num_warps > ScatterShared::kMaxWarps) num_warps = ScatterShared::kMaxWarps;
  while (num_warps > 1 && ScatterShared::bytes(num_warps, row_bytes) > shape.max_shared_bytes) --num_warps;
  LaunchShape fitted = shape;
  fitted.num_threads = static_cast<uint32_t>(num_warps * kWarpSize);
  fitted.shared_bytes = ScatterShared::bytes(num_warps, row_bytes);
  return target::launch("scatter", scatter_kernel, fitted, stream, params);
}

Status launch_gather(const LaunchShape& shape, StreamHandle stream, const GatherParams& params) {
  return target::launch("gather", gather_kernel, shape, stream, params);
}

Status launch_sweep(const LaunchShape& shape, StreamHandle stream, const SweepParams& params) {
  return target::launch("sweep", sweep_kernel, shape, stream, params);
}

Status launch_read(const LaunchShape& shape, StreamHandle stream, const ReadParams& params) {
  LaunchShape fitted = shape;
  fitted.shared_bytes = sizeof(ReadShared);
  return target::launch("read", read_kernel, fitted, stream, params);
}

constexpr LimitKernels kKernels{
    .scatter = &launch_scatter, .gather = &launch_gather, .sweep = &launch_sweep, .read = &launch_read};

}  // namespace

#if defined(__CUDACC__)
const LimitKernels& cuda_limit_kernels() { return kKernels; }
#else
const LimitKernels& limit_kernels([[maybe_unused]] Target target) {
#if defined(SWITCHYARD_HAS_CUDA)
  if (target == Target::kCuda) return cuda_limit_kernels();
#endif
  return kKernels;
}
#endif

}  // namespace switchyard::benchmarks
