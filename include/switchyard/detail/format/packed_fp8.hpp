// PackedFP8TokenFormat: fp8 with one e8m0 scale per 128 elements, four of them in a word, the words
// transposed as Blackwell's grouped matmuls read them. docs/formats.md has the layouts.
#pragma once

#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The scale of blockwise fp8, rounded up to a power of two.
template <typename ElementOf>
struct PackedFP8Quantizer {
  using Element = ElementOf;
  using Scale = e8m0;
  static constexpr int kGroupSize = 128;
  static constexpr float kMinAmax = 1e-4f;  // so that a scale group of zeros has a scale

  struct GroupScale {
    e8m0 stored;
    float factor;
  };
  SWITCHYARD_DEVICE GroupScale scale_of(float amax) const {
    if (!is_finite(amax)) return {e8m0{e8m0::kNanCode}, kQuietNan};
    const float magnitude = amax > kMinAmax ? amax : kMinAmax;
    const e8m0 scale = to_e8m0_round_up(target::divide(magnitude, Element::max()));
    return {scale, reciprocal(scale)};
  }
};

template <typename ElementOf>
struct PackedScaleSource {
  using Element = ElementOf;
  static constexpr int kGroupSize = 128;
  const uint8_t* scales;
  PackedScaleLayout layout;

  SWITCHYARD_DEVICE static float tensor_scale(int64_t) { return 1; }
  SWITCHYARD_DEVICE float scale(int64_t row, int group_idx) const {
    return to_float(e8m0{target::ld(scales + layout.offset(group_idx, row))});
  }
};

template <typename Element = e4m3>
struct PackedFP8TokenFormat {
  using Input = bf16;
  using Quantizer = PackedFP8Quantizer<Element>;
  static_assert(Element::kNumBits == 8);

  int32_t hidden;           // a multiple of 128
  uint32_t max_rows;        // rows the output tensors hold
  uint8_t* output_rows;     // [max_rows][hidden]
  uint32_t* output_scales;  // PackedScaleLayout

  static PackedFP8TokenFormat make(int hidden, const FormatTensors& tensors) {
    return {hidden, tensors.max_rows, reinterpret_cast<uint8_t*>(tensors.rows),
            reinterpret_cast<uint32_t*>(tensors.scales)};
  }
  SWITCHYARD_HD static EncodedSource<PackedScaleSource<Element>> source(int hidden,
                                                                        const FormatTensors& tensors,
                                                                        const RowGroups&) {
    return {reinterpret_cast<const uint8_t*>(tensors.rows),
            hidden,
            {reinterpret_cast<const uint8_t*>(tensors.scales),
             {hidden / Quantizer::kGroupSize, tensors.max_rows}}};
  }

  SWITCHYARD_HD constexpr GroupedMessageLayout<Quantizer> message_layout() const { return {hidden}; }
  SWITCHYARD_HD constexpr PackedScaleLayout scale_layout() const {
    return {hidden / Quantizer::kGroupSize, max_rows};
  }
  SWITCHYARD_HD constexpr uint32_t encoded_bytes() const { return message_layout().bytes(); }
  SWITCHYARD_HD constexpr uint32_t row_alignment() const { return PackedScaleLayout::kRowAlignment; }

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
  SWITCHYARD_HD constexpr PackedFP8TokenFormat with_output(std::byte* rows, std::byte* scales) const {
    return {hidden, max_rows, reinterpret_cast<uint8_t*>(rows), reinterpret_cast<uint32_t*>(scales)};
  }
  SWITCHYARD_DEVICE void encode_in_place(std::byte* token, std::byte* scales) const {
    switchyard::encode_in_place(Quantizer{}, hidden, token, scales);
  }
  // Lane i has row i of the unit: lanes store side by side.
  template <typename Band>
  SWITCHYARD_DEVICE void store_scales(const Band& band, int64_t first_row, int64_t num_rows,
                                      uint32_t first_byte) const {
    const PackedScaleLayout layout = scale_layout();
    const int64_t row = first_row + target::lane_idx();
    if (row >= num_rows) return;
    const Vec16 scales = band.load(row, first_byte);
    const int first_word = static_cast<int>(first_byte / sizeof(uint32_t));
    SWITCHYARD_UNROLL
    for (int i = 0; i < 4; ++i)
      if (first_word + i < layout.num_words())
        target::st(output_scales + layout.word_index(first_word + i, row),
                   scales.words[i] & layout.mask(first_word + i));
  }
  SWITCHYARD_DEVICE void write_scales(const std::byte* scales, int64_t row, int worker_idx,
                                      int num_workers) const {
    const PackedScaleLayout layout = scale_layout();
    const auto* words = reinterpret_cast<const uint32_t*>(scales);
    SWITCHYARD_ROLLED
    for (int word_idx = worker_idx; word_idx < layout.num_words(); word_idx += num_workers)
      target::st(output_scales + layout.word_index(word_idx, row),
                 target::ld(words + word_idx) & layout.mask(word_idx));
  }
};
static_assert(InterleavedTokenFormat<PackedFP8TokenFormat<e4m3>> && TokenFormat<PackedFP8TokenFormat<e4m3>>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
