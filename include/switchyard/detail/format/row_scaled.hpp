// RowScaledTokenFormat: codes with a scale for each group of elements, the scales of a row side by side, so
// that a row and its scales are written without a look at other rows. docs/formats.md has the layouts.
#pragma once

#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_DEVICE float value_of(float scale) { return scale; }
SWITCHYARD_DEVICE float value_of(e8m0 scale) { return to_float(scale); }

template <typename Quantizer>
struct RowScaleSource {
  using Element = typename Quantizer::Element;
  static constexpr int kGroupSize = Quantizer::kGroupSize;
  const typename Quantizer::Scale* scales;
  int num_groups;

  SWITCHYARD_DEVICE static float tensor_scale(int64_t) { return 1; }
  SWITCHYARD_DEVICE float scale(int64_t row, int group_idx) const {
    return value_of(target::ld(scales + row * num_groups + group_idx));
  }
};

// QuantizerOf: what encode_groups() takes, made by default.
template <typename QuantizerOf>
struct RowScaledTokenFormat {
  using Input = bf16;
  using Quantizer = QuantizerOf;
  using Scale = typename Quantizer::Scale;

  int32_t hidden;        // a multiple of kGroupSize
  uint8_t* output_rows;  // [rows][hidden codes, packed]
  Scale* output_scales;  // [rows][hidden / kGroupSize]

  static RowScaledTokenFormat make(int hidden, const FormatTensors& tensors) {
    return {hidden, reinterpret_cast<uint8_t*>(tensors.rows), reinterpret_cast<Scale*>(tensors.scales)};
  }
  SWITCHYARD_HD static EncodedSource<RowScaleSource<Quantizer>> source(int hidden,
                                                                       const FormatTensors& tensors,
                                                                       const RowGroups&) {
    return {reinterpret_cast<const uint8_t*>(tensors.rows),
            hidden,
            {reinterpret_cast<const Scale*>(tensors.scales), hidden / Quantizer::kGroupSize}};
  }

  SWITCHYARD_HD constexpr GroupedMessageLayout<Quantizer> message_layout() const { return {hidden}; }
  SWITCHYARD_HD constexpr uint32_t encoded_bytes() const { return message_layout().bytes(); }
  SWITCHYARD_HD constexpr uint32_t row_alignment() const { return 1; }

  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx,
                                int num_workers) const {
    encode_message(Quantizer{}, hidden, token, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx,
                                int num_workers) const {
    const GroupedMessageLayout<Quantizer> layout = message_layout();
    copy_bytes(output_rows + row * layout.codes_bytes(), message, layout.codes_bytes(), worker_idx,
               num_workers);
    write_scales(message + layout.scales_offset(), row, worker_idx, num_workers);
  }

  // Rows written where they belong, from a token that has become codes (InPlaceTokenFormat).
  static constexpr bool kInterleavesRows = false;
  SWITCHYARD_HD constexpr uint32_t row_bytes() const { return message_layout().codes_bytes(); }
  SWITCHYARD_HD constexpr uint32_t scales_bytes() const { return message_layout().scales_bytes(); }
  SWITCHYARD_DEVICE void encode_in_place(std::byte* token, std::byte* scales) const {
    switchyard::encode_in_place(Quantizer{}, hidden, token, scales);
  }
  SWITCHYARD_DEVICE void write_scales(const std::byte* scales, int64_t row, int worker_idx,
                                      int num_workers) const {
    copy_bytes(output_scales + row * message_layout().num_scales(), scales, scales_bytes(), worker_idx,
               num_workers);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
