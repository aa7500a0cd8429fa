// The six kernels of the direct protocol, with the parameters of the slotted ones. All blocks of a launch
// must be resident at once, on every rank: they wait for each other.
#pragma once

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/direct/combine.hpp"
#include "switchyard/detail/ep/direct/dispatch_async.hpp"
#include "switchyard/detail/ep/direct/dispatch_wait.hpp"
#include "switchyard/detail/format/token_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, DirectFormat Format>
SWITCHYARD_KERNEL void direct_dispatch_async_kernel(DispatchParams<Format> params) {
  begin_kernel<Fixed>();
  DirectDispatchAsync<Fixed, Format>(params).run();
}

template <FixedShape Fixed, DirectFormat Format>
SWITCHYARD_KERNEL void direct_dispatch_wait_kernel(DispatchParams<Format> params) {
  begin_kernel<Fixed>();
  DirectDispatchWait<Fixed, Format>(params).run();
}

template <FixedShape Fixed, DirectFormat Format>
SWITCHYARD_KERNEL void direct_dispatch_kernel(DispatchParams<Format> params) {
  begin_kernel<Fixed>();
  DirectDispatchAsync<Fixed, Format>(params).run();
  target::sync_block();  // what block 0 leaves in counters, and its own number of the step
  DirectDispatchWait<Fixed, Format>(params).run();
}

template <FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void direct_combine_async_kernel(CombineParams<Epilogue> params) {
  begin_kernel<Fixed>();
  admit_successor();  // it waits for no peer
  DirectCombineAsync<Fixed, Epilogue>(params).run();
}

template <FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void direct_combine_wait_kernel(CombineParams<Epilogue> params) {
  begin_kernel<Fixed>();
  DirectCombineWait<Fixed, Epilogue, Rows>(params).run();
}

template <FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void direct_combine_kernel(CombineParams<Epilogue> params) {
  begin_kernel<Fixed>();
  DirectCombineAsync<Fixed, Epilogue>(params).run();
  DirectCombineWait<Fixed, Epilogue, Rows>(params).run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
