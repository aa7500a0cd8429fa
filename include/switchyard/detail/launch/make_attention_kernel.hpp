// Instantiates the attention kernels of one head dimension for the target this file is compiled for, with the
// schedulers that a launch may name, or with one of an application.
#pragma once

#include <type_traits>

#include "switchyard/detail/attention/kernel.hpp"
#include "switchyard/detail/launch/attention_kernels.hpp"
#include "switchyard/detail/launch/launch_shape.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, typename Shared, auto kKernel>
Status launch_attention_kernel(uint32_t num_blocks, StreamHandle stream, const AttentionTensorShapes& tensors,
                               const AttentionSettings& settings) {
  AttentionTensorShapes boxed = tensors;
  boxed.queries.box_heads = settings.heads_per_tile;
  boxed.queries.box_rows = settings.tokens_per_tile;
  boxed.keys.box_rows = boxed.values.box_rows = settings.keys.box_rows;
  const Result<target::TensorMap> queries = target::make_tensor_map(boxed.queries),
                                  keys = target::make_tensor_map(boxed.keys),
                                  values = target::make_tensor_map(boxed.values);
  for (const Result<target::TensorMap>* map : {&queries, &keys, &values})
    if (!map->ok()) return map->status();
  const LaunchShape shape{.num_blocks = num_blocks,
                          .num_threads = Config::kNumThreads,
                          .shared_bytes = sizeof(Shared),
                          .programmatic_dependent = true};
  return target::launch("attention", kKernel, shape, stream,
                        AttentionParams{queries.value(), keys.value(), values.value(), settings});
}

template <typename Config, typename Shared, auto kKernel>
Status load_attention_kernel() {
#if defined(__CUDACC__)
  const target::ResidentKernel kernels[] = {{kKernel, sizeof(Shared)}};
  return target::max_resident_blocks(kernels, Config::kNumThreads).status();
#else
  return Status();
#endif
}

template <typename Config, typename Shared, auto kKernel>
constexpr AttentionKernel make_attention_kernel() {
  static_assert(sizeof(Shared) <= kMaxSharedBytes);
  return {&launch_attention_kernel<Config, Shared, kKernel>, &load_attention_kernel<Config, Shared, kKernel>};
}

template <AttentionTuning kTuning, ScoreKind kScores, typename Schedulers>
constexpr AttentionKernel make_attention_kernel() {
  using Config = AttentionConfig<kTuning, kScores>;
  return make_attention_kernel<Config, AttentionShared<Config>, &attention_kernel<Config, Schedulers>>();
}

// Fills in the kernels of a kind, if there are any, from a candidate on.
template <int kHeadDim, AttentionKind kKind, ScoreKind kScores, typename Schedulers, int kCandidate = 0>
constexpr void make_candidates(KernelsOfHeadDim& kernels) {
  constexpr bool kOnlyFirst =
      kScores != ScoreKind::kPlain || !std::is_same_v<Schedulers, AnyScheduler<PlannerEnvironment>>;
  if constexpr (kCandidate < (kOnlyFirst ? 1 : kMaxCandidates)) {
    constexpr AttentionTuning kTuning = attention_tuning(kHeadDim, kKind, kCandidate);
    if constexpr (kTuning != AttentionTuning{}) {
      static_assert(kTuning.tile_rows() == attention_tuning(kHeadDim, kKind).tile_rows());
      kernels.kernels[static_cast<int>(kKind)][kCandidate] =
          make_attention_kernel<kTuning, kScores, Schedulers>();
      make_candidates<kHeadDim, kKind, kScores, Schedulers, kCandidate + 1>(kernels);
    }
  }
}

template <int kHeadDim, ScoreKind kScores, typename Schedulers = AnyScheduler<PlannerEnvironment>>
constexpr KernelsOfHeadDim make_attention_kernels() {
  KernelsOfHeadDim kernels{};
  make_candidates<kHeadDim, AttentionKind::kFull, kScores, Schedulers>(kernels);
  make_candidates<kHeadDim, AttentionKind::kMasked, kScores, Schedulers>(kernels);
  make_candidates<kHeadDim, AttentionKind::kDecode, kScores, Schedulers>(kernels);
  make_candidates<kHeadDim, AttentionKind::kShortMasked, kScores, Schedulers>(kernels);
  return kernels;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
