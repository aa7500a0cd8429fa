// The direct protocol, for ep/kernels.hpp: counts are exchanged first, then every row is stored where it
// belongs.
#pragma once

#include "switchyard/detail/ep/direct/combine.hpp"
#include "switchyard/detail/ep/direct/dispatch_async.hpp"
#include "switchyard/detail/ep/direct/dispatch_wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct Direct {
  template <typename Format>
  static constexpr bool kTakes = DirectFormat<Format>;

  using DispatchPart = DirectDispatchPart;
  using CombinePart = DirectCombinePart;

  template <FixedShape Fixed, typename Format>
  using DispatchAsync = DirectDispatchAsync<Fixed, Format>;
  template <FixedShape Fixed, typename Format>
  using DispatchWait = DirectDispatchWait<Fixed, Format>;
  template <FixedShape Fixed, typename Epilogue, typename Rows>
  using CombineAsync = DirectCombineAsync<Fixed, Epilogue, Rows>;
  template <FixedShape Fixed, typename Epilogue, typename Rows>
  using CombineWait = DirectCombineWait<Fixed, Epilogue, Rows>;

  static constexpr bool kDispatchAsyncWaits = true;  // for the counts of all ranks
  static constexpr bool kCombineAsyncWaits = false;

  // What block 0 leaves in counters, and its own number of the step.
  SWITCHYARD_DEVICE static void between_dispatch_halves() { target::sync_block(); }
  template <FixedShape Fixed>
  SWITCHYARD_DEVICE static void between_combine_halves() {
    if constexpr (kHasWire<Fixed>) target::sync_block();  // both use shared memory
  }

  // A launch gets all shared memory, or half if a dependent launch may be co-resident. A multiprocessor
  // reserves 1 KB for every block.
  template <typename Format>
  static uint64_t dispatch_shared_bytes(const Format& format, const EpShape& shape,
                                        const LaunchShape& launch) {
    constexpr uint64_t kReservedBytes = 1024;
    return DirectDispatchShared::bytes(format, shape.hidden,
                                       launch.programmatic_dependent
                                           ? (launch.max_shared_bytes - kReservedBytes) / 2
                                           : launch.max_shared_bytes);
  }
  template <FixedShape Fixed, typename Rows>
  static uint64_t combine_shared_bytes(int num_warps) {
    return DirectCombineShared<kHasWire<Fixed>>::template bytes<Rows>(num_warps);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
