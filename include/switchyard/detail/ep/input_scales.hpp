// The scales of a token that comes encoded.
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Copies these scales, in units that the caller's stride leaves aligned.
template <FixedShape Fixed>
SWITCHYARD_DEVICE void take_input_scales(const DispatchStep& step, int token_idx, uint32_t num_bytes,
                                         std::byte* scales, int worker_idx, int num_workers) {
  const std::byte* input =
      step.input_scales +
      static_cast<uint64_t>(mutate<Fixed, LogicMutant::kInputScalesOfFirstToken>(token_idx, 0)) *
          step.scales_stride;
  const auto copy_as = [&](auto unit) {
    using Unit = decltype(unit);
    SWITCHYARD_ROLLED
    for (uint32_t i = static_cast<uint32_t>(worker_idx); i < num_bytes / sizeof(Unit);
         i += static_cast<uint32_t>(num_workers))
      target::st(reinterpret_cast<Unit*>(scales) + i, target::ld(reinterpret_cast<const Unit*>(input) + i));
  };
  if ((num_bytes | step.scales_stride) % sizeof(uint32_t) == 0)
    copy_as(uint32_t{});
  else
    copy_as(uint8_t{});
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
