// The persistent attention kernel: a planner and a producer, a warp each, and the consumers, each with as many
// registers as it needs.
#pragma once

#include "switchyard/detail/attention/consumer.hpp"
#include "switchyard/detail/attention/planner.hpp"
#include "switchyard/detail/attention/producer.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, typename Schedulers, typename Consumer>
SWITCHYARD_DEVICE void attend(const AttentionParams& params) {
  AttentionShared<Config>& shared = target::shared_storage<AttentionShared<Config>>();
  const int warpgroup = target::shuffle(target::thread_idx() / kWarpgroupThreads, 0);
  if (target::thread_idx() == 0) {
    target::prefetch_tensor_map(params.queries);
    target::prefetch_tensor_map(params.keys);
    target::prefetch_tensor_map(params.values);
    shared.init_barriers();
  }
  target::sync_block();
  if (warpgroup == 0) {
    target::give_registers<Config::kProducerRegisters>();
    target::grid_dependency_wait();  // before anything is read; consumers only write what follows from it
    target::grid_dependency_launch();
    if (target::warp_idx() == kProducerWarp) AttentionProducer<Config>(params, shared).run();
    if (target::warp_idx() == kPlannerWarp)
      AttentionPlanner<Config, Schedulers>(params.settings, shared).run();
  } else {
    target::take_registers<Config::kConsumerRegisters>();
    Consumer(params, shared, warpgroup - 1).run();
  }
}

// `Schedulers` has the schedulers that the planner may ask (schedule/any_scheduler.hpp).
template <typename Config, typename Schedulers, typename Consumer = AttentionConsumer<Config>>
SWITCHYARD_KERNEL_OF(Config::kNumResidentThreads)  // so that all of them have registers
void attention_kernel(SWITCHYARD_GRID_CONSTANT const AttentionParams params) {
  if constexpr (target::kHasMatrixUnit) attend<Config, Schedulers, Consumer>(params);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
