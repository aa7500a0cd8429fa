// The tiled grouped matmul: group g's rows times the weights of its expert, output[row][n] = sum over k of
// rows[row][k] * weights[expert][n][k], in fp32, rounded once. A persistent block has a planner and a
// producer, a warp each, and consumers. The order of each sum follows from the shape alone, so the output has
// the same bits from run to run and for any number of blocks. Where rows are codes, two more warps decode
// them.
#pragma once

#include "switchyard/detail/gemm/tiled/arrivals.hpp"
#include "switchyard/detail/gemm/tiled/consumer.hpp"
#include "switchyard/detail/gemm/tiled/decoder.hpp"
#include "switchyard/detail/gemm/tiled/planner.hpp"
#include "switchyard/detail/gemm/tiled/producer.hpp"
#include "switchyard/detail/target/prefetch.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, MatmulArrivals Arrivals, MatmulCompletion Completion,
          MatmulRowDecoding Rows = CopiedRows>
SWITCHYARD_DEVICE void multiply_tiles(const MatmulParams& params, const Arrivals& arrivals,
                                      const Completion& completion, const Rows& rows = {}) {
  static_assert(Rows::kDecodes == Config::kDecodesRows);
  // Decoders would find codes in the L1 that were read beside those of an expert that came earlier.
  static_assert(!(Arrivals::kAwaits && Rows::kDecodes));
  // Of the first warpgroup; the others consume.
  constexpr int kProducerWarp = 0, kPlannerWarp = 1, kFirstDecoderWarp = 2, kPrefetchingWarp = 3;
  MatmulShared<Config>& shared = target::shared_storage<MatmulShared<Config>>();
  const int warpgroup = target::shuffle(target::thread_idx() / kWarpgroupThreads, 0);
  if (target::thread_idx() == 0) {
    if constexpr (!Rows::kDecodes) target::prefetch_tensor_map(params.rows);
    target::prefetch_tensor_map(params.weights);
    shared.init_barriers();
  }
  target::sync_block();
  if constexpr (Config::kIsPair) target::sync_cluster();  // the other block's barriers are initialised, too
  if (warpgroup == 0) {
    if constexpr (Config::kMovesRegisters) target::give_registers<Config::kProducerRegisters>();
    // Weights are nobody's output, and the memory idles while the last blocks of the launch in front end.
    if (target::warp_idx() == kPrefetchingWarp) prefetch_share(params.settings.prefetched);
    target::grid_dependency_wait();  // before anything is read; consumers read and write behind the first
                                     // tile, which follows from it
    // Where rows are awaited the next launch becomes resident when the blocks end: a peer's kernel, for which
    // this one waits, may need the room.
    if constexpr (!Arrivals::kAwaits) target::grid_dependency_launch();
    if (target::warp_idx() == kProducerWarp && target::lane_idx() == 0)
      MatmulProducer<Config, Arrivals>(params, shared).run();
    if (target::warp_idx() == kPlannerWarp)
      MatmulPlanner<Config, Arrivals>(params.settings, arrivals, shared).run();
    if constexpr (Rows::kDecodes) {
      if (target::warp_idx() >= kFirstDecoderWarp)
        MatmulDecoder<Config, Rows>(params.settings, rows, shared,
                                    target::thread_idx() - kFirstDecoderWarp * kWarpSize)
            .run();
    }
  } else {
    if constexpr (Config::kMovesRegisters) target::take_registers<Config::kConsumerRegisters>();
    MatmulConsumer<Config, Arrivals, Completion>(params.settings, completion, shared, warpgroup - 1).run();
  }
  // A block must not end while the other still loads into its shared memory or releases its stages.
  if constexpr (Config::kIsPair) target::sync_cluster();
}

template <typename Config>
SWITCHYARD_KERNEL_OF(Config::kNumThreads)
void tiled_matmul_kernel(SWITCHYARD_GRID_CONSTANT const MatmulParams params) {
  if constexpr (target::kHasMatrixUnit) multiply_tiles<Config>(params, CompleteRows{}, CompleteAtEnd{});
}

// The same, launched before all rows are there. A tile is begun when the rows of its group have arrived.
template <typename Config, MatmulArrivals Arrivals>
SWITCHYARD_KERNEL_OF(Config::kNumThreads)
void early_matmul_kernel(SWITCHYARD_GRID_CONSTANT const EarlyMatmulParams<Arrivals> params) {
  if constexpr (target::kHasMatrixUnit)
    multiply_tiles<Config>(params.matmul, params.arrivals, CompleteAtEnd{});
}

// The same, which tells of each group that is complete while others are not.
template <typename Config, MatmulCompletion Completion>
SWITCHYARD_KERNEL_OF(Config::kNumThreads)
void telling_matmul_kernel(SWITCHYARD_GRID_CONSTANT const TellingMatmulParams<Completion> params) {
  if constexpr (target::kHasMatrixUnit)
    multiply_tiles<Config>(params.matmul, CompleteRows{}, params.completion);
}

// tiled_matmul_kernel for rows that are codes.
template <typename Config, MatmulRowDecoding Rows>
SWITCHYARD_KERNEL_OF(Config::kNumThreads)
void decoding_matmul_kernel(SWITCHYARD_GRID_CONSTANT const DecodingMatmulParams<Rows> params) {
  if constexpr (target::kHasMatrixUnit)
    multiply_tiles<Config>(params.matmul, CompleteRows{}, CompleteAtEnd{}, params.rows);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
