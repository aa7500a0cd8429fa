// SiLU-and-multiply over ragged rows: output = silu(gate) * up, with gate and up side by side in each input
// row.
#pragma once

#include <cmath>

#include "switchyard/gemm/params.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_KERNEL void silu_mul_kernel(SiluMulParams params) {
  const int64_t num_values = static_cast<int64_t>(params.row_offsets[params.num_groups]) * params.width;
  const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
  for (int64_t i = static_cast<int64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
       i < num_values; i += num_threads) {
    const bf16* row = params.gate_up + i / params.width * 2 * params.width;
    const float gate = to_float(row[i % params.width]);
    const float up = to_float(row[params.width + i % params.width]);
    params.output[i] = to_bf16(gate / (1.0f + expf(-gate)) * up);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
