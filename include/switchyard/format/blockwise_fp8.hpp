// BlockwiseFP8TokenFormat: fp8 with one float scale per 128 elements, the scales transposed as Hopper's
// grouped matmuls read them. docs/formats.md has the layouts.
#pragma once

#include "switchyard/format/group_quantize.hpp"
#include "switchyard/format/scale_layout.hpp"
#include "switchyard/format/token_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename ElementOf>
struct BlockwiseFP8Quantizer {
  using Element = ElementOf;
  using Scale = float;
  static constexpr int kGroupSize = 128;
  static constexpr float kMinAmax = 1e-4f;  // so that a group of zeros has a scale

  struct GroupScale {
    float stored;
    float factor;
  };
  SWITCHYARD_DEVICE GroupScale scale_of(float amax) const {
    const float magnitude = amax > kMinAmax ? amax : kMinAmax;
    if (!is_finite(amax)) return {kQuietNan, kQuietNan};
    return {target::divide(magnitude, Element::max()), target::divide(Element::max(), magnitude)};
  }
};

// Element: e4m3 or e5m2.
template <typename Element = e4m3>
struct BlockwiseFP8TokenFormat {
  using Input = bf16;
  using Quantizer = BlockwiseFP8Quantizer<Element>;
  static_assert(Element::kNumBits == 8);

  int32_t hidden;        // a multiple of 128
  uint32_t max_rows;     // rows the output tensors hold
  uint8_t* output_rows;  // [max_rows][hidden]
  float* output_scales;  // TransposedScaleLayout

  static Status check(int hidden) {
    return check_hidden("BlockwiseFP8TokenFormat", hidden, Quantizer::kGroupSize);
  }

  SWITCHYARD_HD constexpr GroupedMessageLayout<Quantizer> message_layout() const { return {hidden}; }
  SWITCHYARD_HD constexpr TransposedScaleLayout scale_layout() const {
    return {hidden / Quantizer::kGroupSize, max_rows};
  }
  SWITCHYARD_HD constexpr uint32_t encoded_bytes() const { return message_layout().bytes(); }
  SWITCHYARD_HD constexpr uint32_t row_alignment() const { return TransposedScaleLayout::kRowAlignment; }

  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx,
                                int num_workers) const {
    encode_message(Quantizer{}, hidden, token, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx,
                                int num_workers) const {
    target::copy_row(output_rows + row * hidden, message, message_layout().codes_bytes(), worker_idx,
                     num_workers);
    write_scales(message + message_layout().scales_offset(), row, worker_idx, num_workers);
  }

  // Rows written where they belong, from a token that has become codes (InPlaceTokenFormat).
  static constexpr bool kInterleavesRows = true;
  static constexpr uint32_t kPlacedRows = 2 * kWarpSize, kPlacedBytes = 32;
  SWITCHYARD_HD constexpr uint32_t row_bytes() const { return message_layout().codes_bytes(); }
  SWITCHYARD_HD constexpr uint32_t scales_bytes() const { return message_layout().scales_bytes(); }
  SWITCHYARD_HD constexpr BlockwiseFP8TokenFormat with_output(std::byte* rows, std::byte* scales) const {
    return {hidden, max_rows, reinterpret_cast<uint8_t*>(rows), reinterpret_cast<float*>(scales)};
  }
  SWITCHYARD_DEVICE void encode_in_place(std::byte* token, std::byte* scales) const {
    switchyard::encode_in_place(Quantizer{}, hidden, token, scales);
  }
  // Lane i has rows i and i + 32 of the unit: lanes store side by side.
  template <typename Staged>
  SWITCHYARD_DEVICE void place_scales(const Staged& staged, int64_t first_row, uint32_t first_byte) const {
    constexpr int kVectors = kPlacedBytes / sizeof(Vec16);
    const TransposedScaleLayout layout = scale_layout();
    const int first_group = static_cast<int>(first_byte / sizeof(float));
    const std::byte* rows[2];
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2; ++i) rows[i] = staged.row(first_row + i * kWarpSize + target::lane_idx());
    Vec16 scales[2][kVectors];
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2 * kVectors; ++i)
      scales[i / kVectors][i % kVectors] =
          staged.load(rows[i / kVectors], first_byte + i % kVectors * sizeof(Vec16));
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first_row + i * kWarpSize + target::lane_idx();
      SWITCHYARD_UNROLL
      for (int j = 0; j < kVectors * 4; ++j)
        if (row < staged.num_rows && first_group + j < layout.num_groups)
          target::st(output_scales + layout.index(first_group + j, row),
                     std::bit_cast<float>(scales[i][j / 4].words[j % 4]));
    }
  }
  SWITCHYARD_DEVICE void write_scales(const std::byte* scales, int64_t row, int worker_idx,
                                      int num_workers) const {
    const TransposedScaleLayout layout = scale_layout();
    for (int group_idx = worker_idx; group_idx < layout.num_groups; group_idx += num_workers)
      target::st(output_scales + layout.index(group_idx, row),
                 target::ld(reinterpret_cast<const float*>(scales) + group_idx));
  }
};
static_assert(InterleavedTokenFormat<BlockwiseFP8TokenFormat<e4m3>>);
static_assert(TokenFormat<BlockwiseFP8TokenFormat<e4m3>> && TokenFormat<BlockwiseFP8TokenFormat<e5m2>>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
