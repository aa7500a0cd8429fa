// The six expert-parallel kernels. Each is a table of contents; the roles are in the files it includes.
// All blocks of a launch must be resident at once, on every rank: they wait for each other.
#pragma once

#include "switchyard/detail/ep/begin_kernel.hpp"
#include "switchyard/detail/ep/slotted/combine_async.hpp"
#include "switchyard/detail/ep/slotted/combine_wait.hpp"
#include "switchyard/detail/ep/slotted/dispatch_async.hpp"
#include "switchyard/detail/ep/slotted/dispatch_wait.hpp"
#include "switchyard/detail/format/token_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The dynamic shared memory the kernels are launched with.
SWITCHYARD_HD constexpr uint64_t dispatch_shared_bytes(uint32_t msg_bytes) {
  const uint64_t async_bytes = DispatchAsyncShared::bytes(msg_bytes);
  return async_bytes > sizeof(DispatchWaitShared) ? async_bytes : sizeof(DispatchWaitShared);
}
template <typename Rows>
SWITCHYARD_HD constexpr uint64_t combine_shared_bytes(int num_warps) {
  const uint64_t wait_bytes =
      sizeof(TokenSources) + static_cast<uint64_t>(num_warps) * RowSum<Rows>::kBytesPerWarp;
  return wait_bytes > sizeof(CombineAsyncShared) ? wait_bytes : sizeof(CombineAsyncShared);
}

template <FixedShape Fixed, DispatchFormat Format>
SWITCHYARD_KERNEL void dispatch_async_kernel(DispatchParams<Format> params) {
  begin_kernel<Fixed>();
  admit_successor();  // it waits for no peer
  DispatchAsync<Fixed, Format>(params).run();
}

template <FixedShape Fixed, DispatchFormat Format>
SWITCHYARD_KERNEL void dispatch_wait_kernel(DispatchParams<Format> params) {
  begin_kernel<Fixed>();
  DispatchWait<Fixed, Format>(params).run();
}

template <FixedShape Fixed, DispatchFormat Format>
SWITCHYARD_KERNEL void dispatch_kernel(DispatchParams<Format> params) {
  begin_kernel<Fixed>();
  DispatchAsync<Fixed, Format>(params).run();
  target::sync_block();  // the two halves use the same shared memory
  DispatchWait<Fixed, Format>(params).run();
}

template <FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void combine_async_kernel(CombineParams<Epilogue> params) {
  begin_kernel<Fixed>();
  admit_successor();  // it waits for no peer
  CombineAsync<Fixed, Epilogue, Rows>(params).run();
}

template <FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void combine_wait_kernel(CombineParams<Epilogue> params) {
  begin_kernel<Fixed>();
  CombineWait<Fixed, Epilogue, Rows>(params).run();
}

template <FixedShape Fixed, typename Epilogue, typename Rows = BF16CombineRows>
SWITCHYARD_KERNEL void combine_kernel(CombineParams<Epilogue> params) {
  begin_kernel<Fixed>();
  CombineAsync<Fixed, Epilogue, Rows>(params).run();
  target::sync_block();  // the two halves use the same shared memory
  CombineWait<Fixed, Epilogue, Rows>(params).run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
