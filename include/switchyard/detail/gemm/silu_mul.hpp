// SiLU-and-multiply over ragged rows: output = silu(gate) * up, with gate and up side by side in each input
// row. The products are computed in fp32, with the same bits on every target, and written once, as bf16 or
// quantised: a lane has elements of one scale group of one row, reduces the group's amax with its neighbours,
// and stores codes.
#pragma once

#include "switchyard/detail/base/exp.hpp"
#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/detail/format/mx.hpp"
#include "switchyard/detail/format/nv_block_scaled.hpp"
#include "switchyard/detail/gemm/params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Every NaN gets the same bits: targets disagree about its sign.
SWITCHYARD_DEVICE float silu_mul(float gate, float up) {
  const float product = target::divide(gate, 1.0f + exp_f32(-gate)) * up;
  return product == product ? product : kQuietNan;
}

// A lane's elements: [chunk_idx * kElements, (chunk_idx + 1) * kElements) of a row.
struct RowChunk {
  int64_t row;
  int chunk_idx;
  int group_idx;  // of the ragged rows
};

// Writers store the products. A writer says how many elements a lane takes, of what the width must be a
// multiple, and whether it needs the group of a row. All lanes of a warp call write() together, even those
// with nothing to write.

struct BF16Writer {
  static constexpr int kElements = 8, kWidthMultiple = 8;
  static constexpr bool kWantsGroup = false;

  bf16* rows;  // [rows][width]

  SWITCHYARD_DEVICE void write(const SiluMulInput& input, const RowChunk& chunk, bool has_elements,
                               const float (&values)[kElements]) const {
    if (!has_elements) return;
    Vec16 packed;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kElements / 2; ++i)
      packed.words[i] = to_bf16(values[2 * i]).bits | static_cast<uint32_t>(to_bf16(values[2 * i + 1]).bits)
                                                          << 16;
    target::st_16(rows + chunk.row * input.width + chunk.chunk_idx * kElements, packed);
  }
};

// What the quantised formats share. `Scales` makes the quantizer of a scale group and stores its scale.
template <typename Scales>
struct QuantizedWriter {
  using Quantizer = typename Scales::Quantizer;
  static constexpr int kElements = kElementsPerLane, kWidthMultiple = Quantizer::kGroupSize;
  static constexpr bool kWantsGroup = Scales::kWantsGroup;

  uint8_t* rows;  // [rows][width codes, packed]
  Scales scales;

  SWITCHYARD_DEVICE void write(const SiluMulInput& input, const RowChunk& chunk, bool has_elements,
                               const float (&values)[kElements]) const {
    using Element = typename Quantizer::Element;
    constexpr int kLanesPerGroup = Quantizer::kGroupSize / kElements;
    LaneFloats elements;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kElements; ++i) elements.values[i] = values[i];
    const float amax = group_amax<Quantizer::kGroupSize>(elements);
    if (!has_elements) return;
    const auto scale = scales.quantizer(chunk).scale_of(amax);
    uint32_t words[kElements * Element::kNumBits / 32];
    quantize<Element>(elements, scale.factor, words);
    const int64_t row_bytes = packed_bytes(static_cast<uint32_t>(input.width), Element::kNumBits);
    store_words(reinterpret_cast<std::byte*>(rows + chunk.row * row_bytes) +
                    chunk.chunk_idx * static_cast<int>(sizeof(words)),
                words);
    if (chunk.chunk_idx % kLanesPerGroup == 0)
      scales.store(input, chunk, chunk.chunk_idx / kLanesPerGroup, scale.stored);
  }
};

template <typename QuantizerOf>
struct TransposedScales {
  using Quantizer = QuantizerOf;
  static constexpr bool kWantsGroup = false;

  float* scales;  // TransposedScaleLayout
  uint32_t max_rows;

  SWITCHYARD_DEVICE Quantizer quantizer(const RowChunk&) const { return {}; }
  SWITCHYARD_DEVICE void store(const SiluMulInput&, const RowChunk& chunk, int scale_idx, float scale) const {
    const TransposedScaleLayout layout{/*num_groups=*/0, max_rows};
    target::st(scales + layout.index(scale_idx, chunk.row), scale);
  }
};

template <typename QuantizerOf>
struct RowScales {
  using Quantizer = QuantizerOf;
  static constexpr bool kWantsGroup = false;

  using Scale = typename Quantizer::Scale;
  Scale* scales;  // [rows][width / kGroupSize]

  SWITCHYARD_DEVICE Quantizer quantizer(const RowChunk&) const { return {}; }
  SWITCHYARD_DEVICE void store(const SiluMulInput& input, const RowChunk& chunk, int scale_idx,
                               Scale scale) const {
    target::st(scales + chunk.row * (input.width / Quantizer::kGroupSize) + scale_idx, scale);
  }
};

template <typename QuantizerOf>
struct PackedScales {
  using Quantizer = QuantizerOf;
  static constexpr bool kWantsGroup = false;

  uint8_t* scales;  // PackedScaleLayout
  uint32_t max_rows;

  SWITCHYARD_DEVICE Quantizer quantizer(const RowChunk&) const { return {}; }
  SWITCHYARD_DEVICE void store(const SiluMulInput& input, const RowChunk& chunk, int scale_idx,
                               e8m0 scale) const {
    const PackedScaleLayout layout{input.width / Quantizer::kGroupSize, max_rows};
    target::st(scales + layout.offset(scale_idx, chunk.row), scale.bits);
    if (scale_idx + 1 < layout.num_groups) return;
    for (int i = scale_idx + 1; i % PackedScaleLayout::kScalesPerWord != 0; ++i)
      target::st(scales + layout.offset(i, chunk.row), uint8_t{0});
  }
};

// Makes the quantizer of a group of the ragged rows. NVFP4 has one tensor scale, or one for each group.
template <typename Quantizer>
struct GroupQuantizers {
  static GroupQuantizers make(const SiluMulDestination&) { return {}; }
  SWITCHYARD_DEVICE Quantizer operator()(int) const { return {}; }
};
template <>
struct GroupQuantizers<NVFP4Quantizer> {
  float tensor_scale;
  const float* group_tensor_scales;  // or null

  static GroupQuantizers make(const SiluMulDestination& to) {
    return {to.tensor_scale, to.group_tensor_scales};
  }
  SWITCHYARD_DEVICE NVFP4Quantizer operator()(int group_idx) const {
    return NVFP4Quantizer(group_tensor_scales == nullptr ? tensor_scale
                                                         : target::ld(group_tensor_scales + group_idx));
  }
};

template <typename QuantizerOf>
struct TiledScales {
  using Quantizer = QuantizerOf;
  using Scale = typename Quantizer::Scale;
  static constexpr bool kWantsGroup = true;

  GroupQuantizers<Quantizer> quantizers;
  uint8_t* scales;                    // TiledScaleLayout
  const uint32_t* scale_row_offsets;  // [num_groups], or null: row r has scale row r

  SWITCHYARD_DEVICE Quantizer quantizer(const RowChunk& chunk) const { return quantizers(chunk.group_idx); }
  // The lane of a row's last scale also stores the zeros behind it.
  SWITCHYARD_DEVICE void store(const SiluMulInput& input, const RowChunk& chunk, int scale_idx,
                               Scale scale) const {
    const TiledScaleLayout tiles{input.width / Quantizer::kGroupSize};
    int64_t scale_row = chunk.row;
    if (scale_row_offsets != nullptr)
      scale_row += static_cast<int64_t>(target::ld(scale_row_offsets + chunk.group_idx)) -
                   target::ld(input.row_offsets + chunk.group_idx);
    uint8_t* address = scales + tiles.offset(scale_row, scale_idx);
    target::st(address, scale.bits);
    if (scale_idx + 1 < tiles.num_columns) return;
    for (int column = scale_idx + 1; column % TiledScaleLayout::kTileColumns != 0; ++column)
      target::st(address + column - scale_idx, uint8_t{0});
  }
};

// Iterates over the chunks of a thread, one in every num_threads; row and chunk are incremented, which avoids
// divisions.
class ChunkCursor {
 public:
  SWITCHYARD_DEVICE ChunkCursor(int64_t first_chunk, int64_t step, int chunks_per_row)
      : chunk_{first_chunk / chunks_per_row, static_cast<int>(first_chunk % chunks_per_row), 0},
        step_rows_(step / chunks_per_row),
        step_chunks_(static_cast<int>(step % chunks_per_row)),
        chunks_per_row_(chunks_per_row) {}

  SWITCHYARD_DEVICE const RowChunk& operator*() const { return chunk_; }
  SWITCHYARD_DEVICE void advance() {
    chunk_.row += step_rows_;
    chunk_.chunk_idx += step_chunks_;
    if (chunk_.chunk_idx < chunks_per_row_) return;
    chunk_.chunk_idx -= chunks_per_row_;
    ++chunk_.row;
  }
  // Advances to the group of the row, which must be in a group.
  SWITCHYARD_DEVICE void find_group(const uint32_t* row_offsets) {
    while (chunk_.row >= target::ld(row_offsets + chunk_.group_idx + 1)) ++chunk_.group_idx;
  }

 private:
  RowChunk chunk_;
  int64_t step_rows_;
  int step_chunks_;
  int chunks_per_row_;
};

template <int kElements>
SWITCHYARD_DEVICE void load_products(const bf16* gate, int width, float (&values)[kElements]) {
  Vec16 gates[kElements / 8], ups[kElements / 8];
  SWITCHYARD_UNROLL
  for (int i = 0; i < kElements / 8; ++i) {
    gates[i] = target::ld_16(gate + i * 8);
    ups[i] = target::ld_16(gate + width + i * 8);
  }
  const auto value = [](const Vec16(&packed)[kElements / 8], int i) {
    return to_float(bf16{static_cast<uint16_t>(packed[i / 8].words[i % 8 / 2] >> (i % 2 * 16))});
  };
  SWITCHYARD_UNROLL
  for (int i = 0; i < kElements; ++i) values[i] = silu_mul(value(gates, i), value(ups, i));
}

template <typename Writer>
struct SiluMulParams {
  SiluMulInput input;  // width: a multiple of Writer::kWidthMultiple
  Writer writer;
};

template <typename Writer>
SWITCHYARD_KERNEL void silu_mul_kernel(SiluMulParams<Writer> params) {
  constexpr int kElements = Writer::kElements;
  const SiluMulInput& input = params.input;
  const int chunks_per_row = input.width / kElements;
  const int64_t num_chunks =
      static_cast<int64_t>(target::ld(input.row_offsets + input.num_groups)) * chunks_per_row;
  const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
  const int64_t first =
      static_cast<int64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
  const int lane_idx = target::thread_idx() % kWarpSize;
  ChunkCursor cursor(first, num_threads, chunks_per_row);
  // All lanes of a warp iterate together, even those past the end: shuffles need every lane. A row holds
  // whole scale groups, and a warp starts with one, so that the lanes of a group are neighbours.
  for (int64_t warp_chunk = first - lane_idx; warp_chunk < num_chunks; warp_chunk += num_threads) {
    const bool has_elements = warp_chunk + lane_idx < num_chunks;
    float values[kElements] = {};
    if (has_elements) {
      if constexpr (Writer::kWantsGroup) cursor.find_group(input.row_offsets);
      load_products(input.gate_up + (*cursor).row * 2 * input.width + (*cursor).chunk_idx * kElements,
                    input.width, values);
    }
    params.writer.write(input, *cursor, has_elements, values);
    cursor.advance();
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
