// The slotted protocol, for ep/kernels.hpp: messages go to receive slots and from there to rows.
#pragma once

#include <algorithm>

#include "switchyard/detail/ep/slotted/combine_async.hpp"
#include "switchyard/detail/ep/slotted/combine_wait.hpp"
#include "switchyard/detail/ep/slotted/dispatch_async.hpp"
#include "switchyard/detail/ep/slotted/dispatch_wait.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct Slotted {
  template <typename Format>
  static constexpr bool kTakes = DispatchFormat<Format>;

  using DispatchPart = SlottedDispatchPart;
  using CombinePart = SlottedCombinePart;

  template <FixedShape Fixed, typename Format>
  using DispatchAsync = SlottedDispatchAsync<Fixed, Format>;
  template <FixedShape Fixed, typename Format>
  using DispatchWait = SlottedDispatchWait<Fixed, Format>;
  template <FixedShape Fixed, typename Epilogue, typename Rows>
  using CombineAsync = SlottedCombineAsync<Fixed, Epilogue, Rows>;
  template <FixedShape Fixed, typename Epilogue, typename Rows>
  using CombineWait = SlottedCombineWait<Fixed, Epilogue, Rows>;

  static constexpr bool kDispatchAsyncWaits = false;
  static constexpr bool kCombineAsyncWaits = false;

  // The barrier is there because both halves use the same shared memory.
  SWITCHYARD_DEVICE static void between_dispatch_halves() { target::sync_block(); }
  template <FixedShape>
  SWITCHYARD_DEVICE static void between_combine_halves() {
    target::sync_block();
  }

  template <typename Format>
  static uint64_t dispatch_shared_bytes(const Format& format, const EpShape& shape, const LaunchShape&) {
    const uint64_t async_bytes =
        SlottedDispatchAsyncShared::bytes(MessageLayout{format.encoded_bytes(), shape.top_k}.bytes());
    return std::max<uint64_t>(async_bytes, sizeof(SlottedDispatchWaitShared));
  }
  template <FixedShape, typename Rows>
  static uint64_t combine_shared_bytes(int num_warps) {
    const uint64_t wait_bytes =
        sizeof(TokenSources) + static_cast<uint64_t>(num_warps) * RowSum<Rows>::kBytesPerWarp;
    return std::max<uint64_t>(wait_bytes, sizeof(SlottedCombineAsyncShared));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
