// Rows of a format read back, sixteen elements at a time as bf16: what gemm/recode_rows.hpp asks of a format.
#pragma once

#include "switchyard/detail/format/group_quantize.hpp"

namespace switchyard {

// The groups that rows belong to, and what a format may ask of them.
struct RowGroups {
  int32_t num_groups;
  const uint32_t* row_offsets;  // [num_groups + 1]; the last one is the number of rows
  const float* tensor_scales;   // NVFP4 by expert: [num_groups]
};

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

// Scales: an Element and a kGroupSize; scale(row, group_idx) and tensor_scale(row), whose product an
// element's code is multiplied with.
template <typename Scales>
struct EncodedSource {
  using Element = typename Scales::Element;

  const uint8_t* rows;  // [rows][hidden codes, packed]
  int32_t hidden;
  Scales scales;

  SWITCHYARD_DEVICE LaneElements load(int64_t row, int chunk_idx) const {
    return load(row, chunk_idx, scales.tensor_scale(row));
  }
  // The same for a caller that knows the tensor scale of the row.
  SWITCHYARD_DEVICE LaneElements load(int64_t row, int chunk_idx, float tensor_scale) const {
    constexpr int kNumWords = kElementsPerLane * Element::kNumBits / 32;
    const int64_t row_bytes = packed_bytes(static_cast<uint32_t>(hidden), Element::kNumBits);
    const auto* words = reinterpret_cast<const uint32_t*>(rows + row * row_bytes) + chunk_idx * kNumWords;
    uint32_t loaded[kNumWords + 1] = {};
    for (int i = 0; i < kNumWords; ++i) loaded[i] = target::ld(words + i);
    const float scale = scales.scale(row, chunk_idx * kElementsPerLane / Scales::kGroupSize);
    LaneElements elements{};
    SWITCHYARD_UNROLL
    for (int i = 0; i < kElementsPerLane; ++i) {
      const int bit = i * Element::kNumBits, shift = bit % 32;
      uint32_t code = loaded[bit / 32] >> shift;
      if (shift + Element::kNumBits > 32) code |= loaded[bit / 32 + 1] << (32 - shift);
      const Element element{static_cast<uint8_t>(code & ((1u << Element::kNumBits) - 1))};
      elements.halves[i / 8].words[i % 8 / 2] |=
          static_cast<uint32_t>(to_bf16(to_float(element) * scale * tensor_scale).bits) << (i % 2 * 16);
    }
    return elements;
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
