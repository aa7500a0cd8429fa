// BlockwiseFP8TokenFormat: fp8 with one float scale per 128 elements, the scales transposed as Hopper's
// grouped matmuls read them. docs/formats.md has the layouts.
#pragma once

#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename ElementOf>
struct BlockwiseFP8Quantizer {
  using Element = ElementOf;
  using Scale = float;
  static constexpr int kGroupSize = 128;
  static constexpr float kMinAmax = 1e-4f;  // so that a scale group of zeros has a scale

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

template <typename ElementOf>
struct TransposedScaleSource {
  using Element = ElementOf;
  static constexpr int kGroupSize = 128;
  const float* scales;
  TransposedScaleLayout layout;

  SWITCHYARD_DEVICE static float tensor_scale(int64_t) { return 1; }
  SWITCHYARD_DEVICE float scale(int64_t row, int group_idx) const {
    return target::ld(scales + layout.index(group_idx, row));
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

  static BlockwiseFP8TokenFormat make(int hidden, const FormatTensors& tensors) {
    return {hidden, tensors.max_rows, reinterpret_cast<uint8_t*>(tensors.rows),
            reinterpret_cast<float*>(tensors.scales)};
  }
  SWITCHYARD_HD static EncodedSource<TransposedScaleSource<Element>> source(int hidden,
                                                                            const FormatTensors& tensors,
                                                                            const RowGroups&) {
    return {
        reinterpret_cast<const uint8_t*>(tensors.rows),
        hidden,
        {reinterpret_cast<const float*>(tensors.scales), {hidden / Quantizer::kGroupSize, tensors.max_rows}}};
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
  static constexpr uint32_t kStoredRows = kWarpSize;
  SWITCHYARD_HD constexpr uint32_t row_bytes() const { return message_layout().codes_bytes(); }
  SWITCHYARD_HD constexpr uint32_t scales_bytes() const { return message_layout().scales_bytes(); }
  SWITCHYARD_HD constexpr BlockwiseFP8TokenFormat with_output(std::byte* rows, std::byte* scales) const {
    return {hidden, max_rows, reinterpret_cast<uint8_t*>(rows), reinterpret_cast<float*>(scales)};
  }
  SWITCHYARD_DEVICE void encode_in_place(std::byte* token, std::byte* scales) const {
    switchyard::encode_in_place(Quantizer{}, hidden, token, scales);
  }
  // Lane i has row i of the unit: lanes store side by side.
  template <typename Band>
  SWITCHYARD_DEVICE void store_scales(const Band& band, int64_t first_row, int64_t num_rows,
                                      uint32_t first_byte) const {
    const TransposedScaleLayout layout = scale_layout();
    const int64_t row = first_row + target::lane_idx();
    if (row >= num_rows) return;
    const Vec16 scales = band.load(row, first_byte);
    const int first_group = static_cast<int>(first_byte / sizeof(float));
    SWITCHYARD_UNROLL
    for (int i = 0; i < 4; ++i)
      if (first_group + i < layout.num_groups)
        target::st(output_scales + layout.index(first_group + i, row), std::bit_cast<float>(scales.words[i]));
  }
  SWITCHYARD_DEVICE void write_scales(const std::byte* scales, int64_t row, int worker_idx,
                                      int num_workers) const {
    const TransposedScaleLayout layout = scale_layout();
    SWITCHYARD_ROLLED
    for (int group_idx = worker_idx; group_idx < layout.num_groups; group_idx += num_workers)
      target::st(output_scales + layout.index(group_idx, row),
                 target::ld(reinterpret_cast<const float*>(scales) + group_idx));
  }
};
static_assert(InterleavedTokenFormat<BlockwiseFP8TokenFormat<e4m3>>);
static_assert(TokenFormat<BlockwiseFP8TokenFormat<e4m3>> && TokenFormat<BlockwiseFP8TokenFormat<e5m2>>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
