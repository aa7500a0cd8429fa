// A token format of one's own: int8 with one scale per token. A message is the codes, then the scale; a row
// of the output is the codes, with the scale in a tensor beside it. Element = code * scale; all are finite.
#pragma once

#include <cmath>

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/format/token_format.hpp"
#include "switchyard/detail/target/target.hpp"

// What runs inside kernels lives in the namespace of the target it is compiled for: the CPU here, CUDA where
// nvcc reads the same file.
namespace example::inline SWITCHYARD_TARGET {

namespace target = switchyard::target;
using switchyard::bf16;

struct Int8TokenFormat {
  using Input = bf16;

  int32_t hidden;        // a multiple of 16
  int8_t* output_rows;   // [rows][hidden]
  float* output_scales;  // [rows]

  SWITCHYARD_HD uint32_t scale_offset() const { return static_cast<uint32_t>(hidden); }
  SWITCHYARD_HD uint32_t encoded_bytes() const { return scale_offset() + 16; }  // a multiple of 16
  SWITCHYARD_HD uint32_t row_alignment() const { return 1; }  // experts' rows start anywhere

  // All threads of a block call it together, but may not wait for each other. So every warp looks at the
  // whole token for the largest magnitude; then each thread writes its part.
  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx,
                                int num_workers) const {
    float amax = 0;
    for (int i = worker_idx % switchyard::kWarpSize; i < hidden; i += switchyard::kWarpSize)
      amax = fmaxf(amax, fabsf(to_float(target::ld(token + i))));
    for (int lane_mask = 1; lane_mask < switchyard::kWarpSize; lane_mask *= 2)
      amax = fmaxf(amax, target::shuffle_xor(amax, lane_mask));
    const float factor = amax > 0 ? target::divide(127.0f, amax) : 0.0f;
    for (int i = worker_idx; i < hidden; i += num_workers)
      target::st(reinterpret_cast<int8_t*>(message) + i,
                 static_cast<int8_t>(rintf(to_float(target::ld(token + i)) * factor)));
    if (worker_idx == 0)
      target::st(reinterpret_cast<float*>(message + scale_offset()), target::divide(amax, 127.0f));
  }

  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx,
                                int num_workers) const {
    target::copy_row(output_rows + row * hidden, message, scale_offset(), worker_idx, num_workers);
    if (worker_idx == 0)
      target::st(output_scales + row, target::ld(reinterpret_cast<const float*>(message + scale_offset())));
  }
};
static_assert(switchyard::TokenFormat<Int8TokenFormat>);

}  // namespace example::inline SWITCHYARD_TARGET
