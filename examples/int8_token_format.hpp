// A token format of one's own: int8 with one scale per token. A message is the codes, then the scale; a row
// of the output is the codes, with the scale in a tensor beside it. Element = code * scale; all are finite.
#pragma once

#include <cmath>

#include "switchyard/own_kernels.hpp"

// What runs inside kernels lives in the namespace of the target it is compiled for: the CPU here, CUDA where
// nvcc reads the same file.
namespace example::inline SWITCHYARD_TARGET {

namespace target = switchyard::target;
using switchyard::bf16;
using switchyard::kWarpSize;

struct Int8TokenFormat {
  using Input = bf16;
  static constexpr char kName[] = "int8";
  static constexpr bool kInterleavesRows = false;  // the scales of neighbouring rows do not share a line

  int32_t hidden;        // a multiple of 32
  int8_t* output_rows;   // [rows][hidden]
  float* output_scales;  // [rows]

  static Int8TokenFormat make(int hidden, const switchyard::FormatTensors& tensors) {
    return {hidden, reinterpret_cast<int8_t*>(tensors.rows), reinterpret_cast<float*>(tensors.scales)};
  }

  static switchyard::Status check(int hidden) {
    if (hidden % kWarpSize == 0) return {};
    return switchyard::invalid_argument("hidden is %d; format int8 needs a multiple of 32", hidden);
  }

  SWITCHYARD_HD uint32_t row_bytes() const { return static_cast<uint32_t>(hidden); }
  SWITCHYARD_HD uint32_t scales_bytes() const { return sizeof(float); }
  SWITCHYARD_HD uint32_t encoded_bytes() const { return row_bytes() + 16; }  // a multiple of 16
  SWITCHYARD_HD uint32_t row_alignment() const { return 1; }                 // experts' rows start anywhere

  // The largest magnitude of a token; every warp looks at all of it.
  SWITCHYARD_DEVICE float amax_of(const bf16* token) const {
    float amax = 0;
    for (int i = target::lane_idx(); i < hidden; i += kWarpSize)
      amax = fmaxf(amax, fabsf(to_float(target::ld(token + i))));
    for (int lane_mask = 1; lane_mask < kWarpSize; lane_mask *= 2)
      amax = fmaxf(amax, target::shuffle_xor(amax, lane_mask));
    return amax;
  }
  SWITCHYARD_DEVICE static int8_t code_of(bf16 element, float amax) {
    return static_cast<int8_t>(rintf(to_float(element) * (amax > 0 ? target::divide(127.0f, amax) : 0.0f)));
  }

  // Slotted: all threads of a block call it together, but may not wait for each other.
  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx,
                                int num_workers) const {
    const float amax = amax_of(token);
    for (int i = worker_idx; i < hidden; i += num_workers)
      target::st(reinterpret_cast<int8_t*>(message) + i, code_of(target::ld(token + i), amax));
    if (worker_idx == 0)
      target::st(reinterpret_cast<float*>(message + row_bytes()), target::divide(amax, 127.0f));
  }
  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx,
                                int num_workers) const {
    target::copy_row(output_rows + row * hidden, message, row_bytes(), worker_idx, num_workers);
    if (worker_idx == 0)
      target::st(output_scales + row, target::ld(reinterpret_cast<const float*>(message + row_bytes())));
  }

  // Direct: one warp turns the token into its row where it lies. A code is written where elements were that
  // all lanes have read: those of this turn or of one before.
  SWITCHYARD_DEVICE void encode_in_place(std::byte* token, std::byte* scales) const {
    const bf16* elements = reinterpret_cast<const bf16*>(token);
    const float amax = amax_of(elements);
    for (int i = target::lane_idx(); i < hidden; i += kWarpSize) {
      const int8_t code = code_of(target::ld(elements + i), amax);
      target::sync_warp();
      target::st(reinterpret_cast<int8_t*>(token) + i, code);
    }
    if (target::lane_idx() == 0) target::st(reinterpret_cast<float*>(scales), target::divide(amax, 127.0f));
  }
};
static_assert(switchyard::OwnTokenFormat<Int8TokenFormat> && switchyard::DirectFormat<Int8TokenFormat>);

}  // namespace example::inline SWITCHYARD_TARGET
