// The table of attention kernels, for the host and, through attention_kernels.cu, for CUDA.
#include "attention_instances.hpp"
#include "launch/kernel_tables.hpp"
#include "switchyard/detail/attention/plan_tiles.hpp"

namespace switchyard {
namespace {

Status launch_plan_tiles(const LaunchShape& shape, StreamHandle stream, const PlanTilesParams& params) {
  return target::launch("plan_tiles", plan_tiles_kernel, shape, stream, params);
}

#if defined(__CUDACC__)
Status load_small_kernels() {
  const target::ResidentKernel kernels[] = {{&plan_tiles_kernel, 0}};
  return target::max_resident_blocks(kernels, kWarpSize).status();
}
uint64_t bytes_of_l2() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device);
  return static_cast<uint64_t>(bytes);
}
#else
Status load_small_kernels() { return Status(); }
uint64_t bytes_of_l2() { return 32 << 20; }
#endif

AttentionKernels make_table() {
  AttentionKernels table{};
  KernelsOfHeadDim *plain = table.by_head_dim[static_cast<int>(ScoreKind::kPlain)],
                   *adjusted = table.by_head_dim[static_cast<int>(ScoreKind::kAdjusted)];
  plain[0] = SWITCHYARD_ATTENTION_KERNELS(64)();
  plain[1] = SWITCHYARD_ATTENTION_KERNELS(128)();
  plain[2] = SWITCHYARD_ATTENTION_KERNELS(256)();
  adjusted[0] = SWITCHYARD_ATTENTION_KERNELS(adjusted_64)();
  adjusted[1] = SWITCHYARD_ATTENTION_KERNELS(adjusted_128)();
  adjusted[2] = SWITCHYARD_ATTENTION_KERNELS(adjusted_256)();
  table.mla = SWITCHYARD_ATTENTION_KERNELS(mla)();
  for (const ScoreKind scores : {ScoreKind::kPlain, ScoreKind::kAdjusted})
    for (int i = 0; i < 3; ++i)
      table.fp8[static_cast<int>(scores)][i] = SWITCHYARD_ATTENTION_KERNELS(fp8)(scores, 64 << i);
  table.plan_tiles = &launch_plan_tiles;
  table.load = &load_small_kernels;
  table.l2_bytes = &bytes_of_l2;
  return table;
}

}  // namespace

template <>
const AttentionKernels& attention_kernels_of<kThisTarget>() {
  static const AttentionKernels table = make_table();
  return table;
}

}  // namespace switchyard
