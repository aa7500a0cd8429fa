// The persistent kernel of multi-head latent attention: planner, producer and two consumers.
#pragma once

#include "switchyard/detail/attention/mla/consumer.hpp"
#include "switchyard/detail/attention/mla/producer.hpp"
#include "switchyard/detail/attention/planner.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, typename Schedulers>
SWITCHYARD_DEVICE void attend_to_latents(const AttentionParams& params) {
  MlaShared<Config>& shared = target::shared_storage<MlaShared<Config>>();
  const int warpgroup = target::shuffle(target::thread_idx() / kWarpgroupThreads, 0);
  if (target::thread_idx() == 0) {
    target::prefetch_tensor_map(params.queries);
    target::prefetch_tensor_map(params.keys);
    shared.init_barriers();
  }
  target::sync_block();
  if (warpgroup == 0) {
    target::give_registers<Config::kProducerRegisters>();
    target::grid_dependency_wait();  // before anything is read; consumers only write what follows from it
    target::grid_dependency_launch();
    if (target::warp_idx() == kProducerWarp) MlaProducer<Config>(params, shared).run();
    if (target::warp_idx() == kPlannerWarp)
      AttentionPlanner<Config, Schedulers, MlaShared<Config>>(params.settings, shared).run();
  } else if (warpgroup == 1) {
    target::take_registers<Config::kFirstConsumerRegisters>();
    MlaConsumer<Config, 0>(params, shared).run();
  } else {
    target::take_registers<Config::kSecondConsumerRegisters>();
    MlaConsumer<Config, 1>(params, shared).run();
  }
}

template <typename Config, typename Schedulers>
SWITCHYARD_KERNEL_OF(Config::kNumThreads)
void mla_kernel(SWITCHYARD_GRID_CONSTANT const AttentionParams params) {
  if constexpr (target::kHasMatrixUnit) attend_to_latents<Config, Schedulers>(params);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
