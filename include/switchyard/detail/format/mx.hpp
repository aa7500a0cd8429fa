// MXTokenFormat: MXFP8, MXFP6 and MXFP4 of the OCP Microscaling specification, one e8m0 scale per 32
// elements, the scales of a row side by side. docs/formats.md has the layouts.
#pragma once

#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename ElementOf>
struct MXQuantizer {
  using Element = ElementOf;
  using Scale = e8m0;
  static constexpr int kGroupSize = 32;

  struct GroupScale {
    e8m0 stored;
    float factor;
  };
  SWITCHYARD_DEVICE GroupScale scale_of(float amax) const {
    const e8m0 scale = mx_scale<Element>(amax);
    return {scale, reciprocal(scale)};
  }
};

template <typename ElementOf>
struct RowScaleSource {
  using Element = ElementOf;
  static constexpr int kGroupSize = 32;
  const e8m0* scales;
  int num_groups;

  SWITCHYARD_DEVICE static float tensor_scale(int64_t) { return 1; }
  SWITCHYARD_DEVICE float scale(int64_t row, int group_idx) const {
    return to_float(target::ld(scales + row * num_groups + group_idx));
  }
};

// Element: e4m3, e5m2, e2m3, e3m2 or e2m1.
template <typename Element>
struct MXTokenFormat {
  using Input = bf16;
  using Quantizer = MXQuantizer<Element>;

  int32_t hidden;        // a multiple of 32
  uint8_t* output_rows;  // [rows][hidden codes, packed]
  e8m0* output_scales;   // [rows][hidden / 32]

  static MXTokenFormat make(int hidden, const FormatTensors& tensors) {
    return {hidden, reinterpret_cast<uint8_t*>(tensors.rows), reinterpret_cast<e8m0*>(tensors.scales)};
  }
  static EncodedSource<RowScaleSource<Element>> source(int hidden, const FormatTensors& tensors,
                                                       const RowGroups&) {
    return {reinterpret_cast<const uint8_t*>(tensors.rows),
            hidden,
            {reinterpret_cast<const e8m0*>(tensors.scales), hidden / Quantizer::kGroupSize}};
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
static_assert(TokenFormat<MXTokenFormat<e4m3>> && TokenFormat<MXTokenFormat<e5m2>>);
static_assert(TokenFormat<MXTokenFormat<e2m3>> && TokenFormat<MXTokenFormat<e3m2>>);
static_assert(TokenFormat<MXTokenFormat<e2m1>> && InPlaceTokenFormat<MXTokenFormat<e2m1>>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
