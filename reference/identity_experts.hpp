// Identity experts, as a kernel on the host target: it copies rows to expert outputs through the same
// simulated memory that the protocol's kernels use, so that weak memory can show a missing order.
#pragma once

#include "switchyard/detail/target/target.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::reference {

struct IdentityExperts {
  const bf16* rows;
  bf16* expert_outputs;
  const uint32_t* num_rows;  // in device memory: the last of row_offsets
  uint32_t max_rows;
  int32_t hidden;
};

inline void identity_experts_kernel(IdentityExperts experts) {
  const uint32_t num_rows = target::ld(experts.num_rows);
  const uint64_t rows = num_rows < experts.max_rows ? num_rows : experts.max_rows;
  target::copy_row(experts.expert_outputs, experts.rows,
                   rows * static_cast<uint64_t>(experts.hidden) * sizeof(bf16), target::thread_idx(),
                   target::num_threads());
}

inline Status launch_identity_experts(StreamHandle stream, const IdentityExperts& experts) {
  return target::launch("identity_experts", identity_experts_kernel, {}, stream, experts);
}

}  // namespace switchyard::reference
