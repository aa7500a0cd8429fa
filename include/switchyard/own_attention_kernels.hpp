// Attention with a tile scheduler of the application's: the attention kernels of one head dimension, compiled
// with it where this header is included.
//
//   template <TileEnvironment Environment>
//   class MyScheduler : public TileSchedulerBase<MHASchedule::DEFAULT, Environment> { .. };
//
//   shape.own_kernels = &own_attention_kernels<MyScheduler, 128>();
//   auto attention = Attention::create(rank, shape).value();
//
// The type is instantiated twice: with the environment of the kernel, and with that of one thread, by which
// the host plans the launch. So its members are SWITCHYARD_HD, and SWITCHYARD_NO_EXEC_CHECK stands before a
// template among them that calls the environment: it runs where the environment does.
//
// Ownership: the kernels are constants of the program; nobody frees them.
// Targets: a .cpp compiles them for the host, a .cu for CUDA; Attention::create() refuses those of another
// target than its rank's.
// Threads: own_attention_kernels() may be called from any thread. One warp of each block asks the scheduler.
// Errors: a type that is no MHATileScheduler does not compile. Whether a scheduler gives every tile exactly
// once is not checked: tiles that are left out are not written. These kernels have neither a soft cap nor
// sinks; Attention refuses both.
#pragma once

#include <type_traits>

#include "switchyard/attention.hpp"
#include "switchyard/detail/launch/make_attention_kernel.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// head_dim: 64, 128 or 256. The scheduler is constructed from (queue, shape, environment) if it can be, where
// the queue is a word that must be 0 after every launch, else from (shape, environment).
template <template <TileEnvironment> class Scheduler, int kHeadDim>
const OwnAttentionKernels& own_attention_kernels() {
  // Both depend on a parameter: clang 16 crashes where it checks one that depends on none.
  using HostEnvironment = std::enable_if_t<(kHeadDim > 0), OneThread>;
  using KernelEnvironment = std::enable_if_t<(kHeadDim > 0), PlannerEnvironment>;
  using OnHost = Scheduler<HostEnvironment>;
  static_assert(MHATileScheduler<OnHost, RowOffsets> && MHATileScheduler<OnHost, CommonLength>);
  using Schedulers = OnlyScheduler<Scheduler<KernelEnvironment>, KernelEnvironment>;
  static const OwnAttentionKernels kernels{
      .target = kThisTarget,
      .head_dim = kHeadDim,
      .kernels = make_attention_kernels<kHeadDim, ScoreKind::kPlain, Schedulers>(),
      .order = OnHost::mha_schedule,
      .scheduler_name = OnHost::get_type_name(),
      .grid_dim = [](uint32_t batch_size, uint32_t max_num_prompt_tiles, const MHATileShape& shape) {
        return OnHost::grid_dim(batch_size, max_num_prompt_tiles, shape);
      }};
  return kernels;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
