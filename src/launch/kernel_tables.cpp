// Which target's table is meant.
#include "kernel_tables.hpp"

#include <cstdio>
#include <cstdlib>

#include "switchyard/detail/launch/decoding_matmul_kernels.hpp"
#include "switchyard/detail/launch/early_matmul_kernels.hpp"

namespace switchyard {
namespace {

// Returns of.operator()<target>(). A build without CUDA makes no device on which kernels of CUDA could run,
// so nobody can ask for them: the kernels of another target must not stand in for them.
template <typename Of>
decltype(auto) for_target(Target target, const Of& of) {
#if defined(SWITCHYARD_HAS_CUDA)
  if (target == Target::kCuda) return of.template operator()<Target::kCuda>();
#endif
  if (target != Target::kHost) {
    std::fprintf(stderr, "switchyard: kernels of target %d; this build has those of the host only\n",
                 static_cast<int>(target));
    std::abort();
  }
  return of.template operator()<Target::kHost>();
}

}  // namespace

const KernelTable& kernel_table(Target target) {
  return for_target(target,
                    []<Target kTarget>() -> const KernelTable& { return kernel_table_of<kTarget>(); });
}
const AttentionKernels& attention_kernels(Target target) {
  return for_target(
      target, []<Target kTarget>() -> const AttentionKernels& { return attention_kernels_of<kTarget>(); });
}
namespace {
template <Target kTarget>
const MatmulKernels& matmul_kernels_with(MatmulEpilogue epilogue) {
  switch (epilogue) {
    case MatmulEpilogue::kPlain:
      break;
    case MatmulEpilogue::kAffine:
      return matmul_kernels_of<kTarget, MatmulEpilogue::kAffine>();
    case MatmulEpilogue::kGated:
      return matmul_kernels_of<kTarget, MatmulEpilogue::kGated>();
    case MatmulEpilogue::kGatedFP8:
      return matmul_kernels_of<kTarget, MatmulEpilogue::kGatedFP8>();
    case MatmulEpilogue::kAffineFP8:
      return matmul_kernels_of<kTarget, MatmulEpilogue::kAffineFP8>();
  }
  return matmul_kernels_of<kTarget, MatmulEpilogue::kPlain>();
}
}  // namespace

const MatmulKernels& matmul_kernels(Target target, MatmulEpilogue epilogue) {
  return for_target(target, [&]<Target kTarget>() -> const MatmulKernels& {
    return matmul_kernels_with<kTarget>(epilogue);
  });
}

const EarlyMatmulKernel* early_matmul_kernel(Target target, const MatmulTuning& tuning) {
  return for_target(target, [&]<Target kTarget>() -> const EarlyMatmulKernel* {
    return early_matmul_kernel_of<kTarget>(tuning);
  });
}
const TellingMatmulKernel* telling_matmul_kernel(Target target, const MatmulTuning& tuning) {
  return for_target(target, [&]<Target kTarget>() -> const TellingMatmulKernel* {
    return telling_matmul_kernel_of<kTarget>(tuning);
  });
}
const DecodingMatmulKernel* decoding_matmul_kernel(Target target, MatmulEpilogue epilogue,
                                                   const MatmulTuning& tuning) {
  return for_target(target, [&]<Target kTarget>() -> const DecodingMatmulKernel* {
    return decoding_matmul_kernel_of<kTarget>(epilogue, tuning);
  });
}

}  // namespace switchyard
