// The six expert-parallel kernels, written once over a protocol. Each is a table of contents; the roles are
// in ep/slotted/ and ep/direct/. All blocks of a launch must be resident at once, on every rank: they wait
// for each other. Profilers show one kernel of a call that is split by the call's name: dispatch_async's and
// combine_wait's.
#pragma once

#include <concepts>
#include <type_traits>

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/protocol.hpp"
#include "switchyard/detail/ep/slotted/protocol.hpp"
#include "switchyard/detail/format/bf16.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A protocol names its four roles, what their parameters have beyond a step's, whether the first half of each
// call waits for a peer, what stands between the two halves of a fused kernel, and the dynamic shared memory
// that the kernels are launched with.
template <typename T>
concept EpProtocol = requires(const BF16TokenFormat& format, const EpShape& shape,
                              const LaunchShape& launch) {
  { T::template kTakes<BF16TokenFormat> } -> std::convertible_to<bool>;
  typename T::DispatchPart;
  typename T::CombinePart;
  typename T::template DispatchAsync<RunTimeShape, BF16TokenFormat>;
  typename T::template DispatchWait<RunTimeShape, BF16TokenFormat>;
  typename T::template CombineAsync<RunTimeShape, StoreWeighted, BF16CombineRows>;
  typename T::template CombineWait<RunTimeShape, StoreWeighted, BF16CombineRows>;
  { T::kDispatchAsyncWaits } -> std::convertible_to<bool>;
  { T::kCombineAsyncWaits } -> std::convertible_to<bool>;
  T::between_dispatch_halves();
  T::template between_combine_halves<RunTimeShape>();
  { T::dispatch_shared_bytes(format, shape, launch) } -> std::same_as<uint64_t>;
  {
    T::template combine_shared_bytes<RunTimeShape, BF16CombineRows>(launch.num_threads)
    } -> std::same_as<uint64_t>;
};
// A token format for which the protocol's kernels can be compiled.
template <typename Format, typename P>
concept TakenBy = P::template kTakes<Format>;
static_assert(EpProtocol<Slotted> && EpProtocol<Direct>);

template <typename P, typename Format>
using DispatchParamsOf = DispatchParams<typename P::DispatchPart, Format>;
template <typename P, typename Epilogue>
using CombineParamsOf = CombineParams<typename P::CombinePart, Epilogue>;

template <EpProtocol P, FixedShape Fixed, TakenBy<P> Format>
SWITCHYARD_KERNEL void dispatch_async_kernel(DispatchParams<typename P::DispatchPart, Format> params) {
  begin_kernel<Fixed>();
  if constexpr (!P::kDispatchAsyncWaits) admit_successor();
  typename P::template DispatchAsync<Fixed, Format>(params).run();
}

// The kernel of dispatch_wait.
template <EpProtocol P, FixedShape Fixed, TakenBy<P> Format>
SWITCHYARD_KERNEL void receive_rows_kernel(DispatchParams<typename P::DispatchPart, Format> params) {
  begin_kernel<Fixed>();
  typename P::template DispatchWait<Fixed, Format>(params).run();
}

template <EpProtocol P, FixedShape Fixed, TakenBy<P> Format>
SWITCHYARD_KERNEL void dispatch_kernel(DispatchParams<typename P::DispatchPart, Format> params) {
  begin_kernel<Fixed>();
  typename P::template DispatchAsync<Fixed, Format>(params).run();
  P::between_dispatch_halves();
  typename P::template DispatchWait<Fixed, Format>(params).run();
}

// The kernel of combine_async.
template <EpProtocol P, FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void return_rows_kernel(CombineParams<typename P::CombinePart, Epilogue> params) {
  begin_kernel<Fixed>();
  if constexpr (!P::kCombineAsyncWaits) admit_successor();
  typename P::template CombineAsync<Fixed, Epilogue, Rows>(params).run();
}

template <EpProtocol P, FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void combine_wait_kernel(CombineParams<typename P::CombinePart, Epilogue> params) {
  begin_kernel<Fixed>();
  typename P::template CombineWait<Fixed, Epilogue, Rows>(params).run();
}

template <EpProtocol P, FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void combine_kernel(CombineParams<typename P::CombinePart, Epilogue> params) {
  begin_kernel<Fixed>();
  typename P::template CombineAsync<Fixed, Epilogue, Rows>(params).run();
  P::template between_combine_halves<Fixed>();
  typename P::template CombineWait<Fixed, Epilogue, Rows>(params).run();
}

// A combine that may be resident while the launch in front of it, that of the experts, still runs; that one
// is behind all else that is read here. What comes behind this launch is to be behind both.
template <EpProtocol P, FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void early_combine_kernel(CombineParams<typename P::CombinePart, Epilogue> params) {
  // What this multiprocessor has cached of earlier steps is not read again: an acquire, in front of any load.
  (void)target::ld_acquire_device(DirectCounters{params.ep_counters}.num_steps());
  typename P::template CombineAsync<Fixed, Epilogue, Rows>(params).run();
  P::template between_combine_halves<Fixed>();
  typename P::template CombineWait<Fixed, Epilogue, Rows>(params).run();
  target::grid_dependency_wait();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
