// The kernel in front of a dispatch whose ids come in 64 bits: those that dispatch and combine read have 32.
// An id that 32 bits do not hold becomes the nearest number that they do, which is no id, either.
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_DEVICE int32_t narrowed_id(int64_t id) {
  if (id > INT32_MAX) return INT32_MAX;
  return id < INT32_MIN ? INT32_MIN : static_cast<int32_t>(id);
}

SWITCHYARD_KERNEL void narrow_ids_kernel(NarrowIdsParams params) {
  for (int i = target::block_idx() * target::num_threads() + target::thread_idx(); i < params.num_ids;
       i += target::num_blocks() * target::num_threads())
    target::st(params.narrowed + i, narrowed_id(target::ld(params.ids + i)));
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
