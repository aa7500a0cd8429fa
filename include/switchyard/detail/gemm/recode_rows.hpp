// Converts rows of a token format to bf16, or to blockwise fp8, an encoded token each, as a quantised combine
// takes them. Identity experts need it, and so does a matmul that only takes bf16.
#pragma once

#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/detail/format/mx.hpp"
#include "switchyard/detail/format/nv_block_scaled.hpp"
#include "switchyard/detail/gemm/params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Sources return sixteen elements of a row at a time, as bf16.

struct BF16Source {
  const bf16* rows;  // [rows][hidden]
  int32_t hidden;

  SWITCHYARD_DEVICE LaneElements load(int64_t row, int chunk_idx) const {
    const bf16* elements = rows + row * hidden + chunk_idx * kElementsPerLane;
    return {{target::ld_16(elements), target::ld_16(elements + 8)}};
  }
};

// The factor by which a code is multiplied: scale (* tensor scale).
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
template <typename ElementOf>
struct TiledScaleSource {
  using Element = ElementOf;
  static constexpr int kGroupSize = 32;
  const uint8_t* scales;
  TiledScaleLayout layout;

  SWITCHYARD_DEVICE static float tensor_scale(int64_t) { return 1; }
  SWITCHYARD_DEVICE float scale(int64_t row, int group_idx) const {
    return to_float(e8m0{target::ld(scales + layout.offset(row, group_idx))});
  }
};
struct NVFP4ScaleSource {
  using Element = e2m1;
  static constexpr int kGroupSize = 16;
  const uint8_t* scales;
  TiledScaleLayout layout;
  float one_tensor_scale;
  const float* group_tensor_scales;  // of the groups of rows; null: one for all
  const uint32_t* row_offsets;
  int num_row_groups;

  SWITCHYARD_DEVICE float scale(int64_t row, int group_idx) const {
    return to_float(e4m3{target::ld(scales + layout.offset(row, group_idx))});
  }
  SWITCHYARD_DEVICE float tensor_scale(int64_t row) const {
    if (group_tensor_scales == nullptr) return one_tensor_scale;
    // The row is in the first group that ends after it.
    int first = 0, last = num_row_groups - 1;
    while (first < last) {
      const int middle = (first + last) / 2;
      if (row < target::ld(row_offsets + middle + 1))
        last = middle;
      else
        first = middle + 1;
    }
    return target::ld(group_tensor_scales + first);
  }
};

template <typename Scales>
struct EncodedSource {
  using Element = typename Scales::Element;

  const uint8_t* rows;  // [rows][hidden codes, packed]
  int32_t hidden;
  Scales scales;

  SWITCHYARD_DEVICE LaneElements load(int64_t row, int chunk_idx) const {
    constexpr int kNumWords = kElementsPerLane * Element::kNumBits / 32;
    const int64_t row_bytes = packed_bytes(static_cast<uint32_t>(hidden), Element::kNumBits);
    const auto* words = reinterpret_cast<const uint32_t*>(rows + row * row_bytes) + chunk_idx * kNumWords;
    uint32_t loaded[kNumWords + 1] = {};
    for (int i = 0; i < kNumWords; ++i) loaded[i] = target::ld(words + i);
    const float scale = scales.scale(row, chunk_idx * kElementsPerLane / Scales::kGroupSize);
    const float tensor_scale = scales.tensor_scale(row);
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

template <typename Source>
struct RecodeParams {
  RecodeArguments arguments;
  Source source;
};

SWITCHYARD_DEVICE void store_fp8(const RecodeArguments& arguments, const LaneElements& elements, int64_t row,
                                 int chunk_idx, bool has_elements) {
  using Quantizer = BlockwiseFP8Quantizer<e4m3>;
  constexpr int kLanesPerGroup = Quantizer::kGroupSize / kElementsPerLane;
  const auto scale = Quantizer{}.scale_of(group_amax<Quantizer::kGroupSize>(elements));
  if (!has_elements) return;
  const GroupedMessageLayout<Quantizer> layout{arguments.hidden};
  std::byte* output = static_cast<std::byte*>(arguments.output) +
                      row * combine_row_bytes(CombineFormat::kFP8, arguments.hidden);
  uint32_t words[kElementsPerLane / 4];
  quantize<e4m3>(elements, scale.factor, words);
  store_words(output + chunk_idx * kElementsPerLane, words);
  if (chunk_idx % kLanesPerGroup == 0)
    target::st(layout.scales(output) + chunk_idx / kLanesPerGroup, scale.stored);
}

template <typename Source>
SWITCHYARD_KERNEL void recode_rows_kernel(RecodeParams<Source> params) {
  const RecodeArguments& arguments = params.arguments;
  const int chunks_per_row = arguments.hidden / kElementsPerLane;
  const int64_t num_chunks =
      static_cast<int64_t>(target::ld(arguments.row_offsets + arguments.num_groups)) * chunks_per_row;
  const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
  // All lanes of a warp iterate together, even those past the end: shuffles need every lane.
  for (int64_t warp_chunk = static_cast<int64_t>(target::block_idx()) * target::num_threads() +
                            target::thread_idx() - target::lane_idx();
       warp_chunk < num_chunks; warp_chunk += num_threads) {
    const int64_t chunk = warp_chunk + target::lane_idx(), row = chunk / chunks_per_row;
    const int chunk_idx = static_cast<int>(chunk % chunks_per_row);
    const bool has_elements = chunk < num_chunks;
    const LaneElements elements = has_elements ? params.source.load(row, chunk_idx) : LaneElements{};
    if (arguments.output_format == CombineFormat::kFP8) {
      store_fp8(arguments, elements, row, chunk_idx, has_elements);
    } else if (has_elements) {
      bf16* output =
          static_cast<bf16*>(arguments.output) + row * arguments.hidden + chunk_idx * kElementsPerLane;
      target::st_16(output, elements.halves[0]);
      target::st_16(output + 8, elements.halves[1]);
    }
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
