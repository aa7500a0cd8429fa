// Instantiates the attention kernels of one head dimension for the target this file is compiled for.
#pragma once

#include "switchyard/detail/attention/kernel.hpp"
#include "switchyard/detail/launch/attention_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
Status launch_attention(uint32_t num_blocks, StreamHandle stream, const AttentionTensorShapes& tensors,
                        const AttentionNumbers& numbers) {
  AttentionTensorShapes boxed = tensors;
  boxed.queries.box_heads = numbers.heads_per_tile;
  boxed.queries.box_rows = numbers.tokens_per_tile;
  boxed.keys.box_rows = boxed.values.box_rows = numbers.keys.box_rows;
  const Result<target::TensorMap> queries = target::make_tensor_map(boxed.queries),
                                  keys = target::make_tensor_map(boxed.keys),
                                  values = target::make_tensor_map(boxed.values);
  for (const Result<target::TensorMap>* map : {&queries, &keys, &values})
    if (!map->ok()) return map->status();
  const LaunchShape shape{.num_blocks = num_blocks,
                          .num_threads = Config::kNumThreads,
                          .shared_bytes = sizeof(AttentionShared<Config>),
                          .programmatic_dependent = true};
  return target::launch("attention", attention_kernel<Config>, shape, stream,
                        AttentionParams{queries.value(), keys.value(), values.value(), numbers});
}

template <typename Config>
Status load_attention() {
#if defined(__CUDACC__)
  const target::ResidentKernel kernels[] = {{&attention_kernel<Config>, sizeof(AttentionShared<Config>)}};
  return target::max_resident_blocks(kernels, Config::kNumThreads).status();
#else
  return Status();
#endif
}

template <int kHeadDim, AttentionKind kKind>
constexpr AttentionKernel make_attention_kernel() {
  using Config = AttentionConfig<kHeadDim, kKind>;
  static_assert(sizeof(AttentionShared<Config>) <= kMaxSharedBytes);
  return {&launch_attention<Config>, &load_attention<Config>, Config::kTileRows, Config::kTileKeys,
          Config::kBlocksPerMultiprocessor};
}

}  // namespace switchyard::inline SWITCHYARD_TARGET

namespace switchyard {

// Each head dimension in a file of its own, so that they compile side by side.
#if defined(__CUDACC__)
#define SWITCHYARD_ATTENTION_KERNELS(dim) cuda_attention_kernels_##dim
#else
#define SWITCHYARD_ATTENTION_KERNELS(dim) host_attention_kernels_##dim
#endif

struct KernelsOfHeadDim {
  AttentionKernel kernels[kNumAttentionKinds];
};

template <int kHeadDim>
constexpr KernelsOfHeadDim make_attention_kernels() {
  constexpr AttentionKind kShort = kHeadDim == 64 ? AttentionKind::kShortBanded : AttentionKind::kBanded;
  return {{make_attention_kernel<kHeadDim, AttentionKind::kFull>(),
           make_attention_kernel<kHeadDim, AttentionKind::kBanded>(),
           make_attention_kernel<kHeadDim, AttentionKind::kDecode>(),
           make_attention_kernel<kHeadDim, kShort>()}};
}

KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(64)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(128)();
KernelsOfHeadDim SWITCHYARD_ATTENTION_KERNELS(256)();

}  // namespace switchyard
