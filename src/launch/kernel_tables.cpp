// Which target's table is meant.
#include "kernel_tables.hpp"

namespace switchyard {

#if defined(SWITCHYARD_HAS_CUDA)
inline constexpr Target kOther = Target::kCuda;
#else
inline constexpr Target kOther = Target::kHost;
#endif

const KernelTable& kernel_table(Target target) {
  return target == Target::kHost ? kernel_table_of<Target::kHost>() : kernel_table_of<kOther>();
}
const AttentionKernels& attention_kernels(Target target) {
  return target == Target::kHost ? attention_kernels_of<Target::kHost>() : attention_kernels_of<kOther>();
}
const MatmulKernels& matmul_kernels(Target target) {
  return target == Target::kHost ? matmul_kernels_of<Target::kHost>() : matmul_kernels_of<kOther>();
}

}  // namespace switchyard
