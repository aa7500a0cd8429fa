// NVBlockScaledTokenFormat: NVFP4, MXFP8 and MXFP4 with the scales in the tiles that block-scaled matrix
// units read. docs/formats.md has the layouts.
#pragma once

#include <type_traits>

#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/format/mx.hpp"
#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard {

// How the rows of experts follow each other. The scales of each expert start at a tile either way.
enum class RowPacking {
  kPadded,  // an expert's rows start at a multiple of 128; row r has scale row r
  kTight,   // rows end to end; only the scales are padded, and the format must know a row's expert
};

// What a tensor scale is: element = code * its scale group's scale * tensor scale. It must be positive, and
// between 2^-100 and 2^100, so that no product on the way leaves the normal floats.
struct OneInputScale {
  static constexpr bool kIsPerExpert = false;

  float scale;
  const float* device_scale = nullptr;  // instead of it, if it is not null

  static OneInputScale make(const FormatTensors& tensors) {
    return {tensors.tensor_scale, tensors.device_tensor_scale};
  }
  SWITCHYARD_HD float operator()(int) const { return device_scale != nullptr ? *device_scale : scale; }
};

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

struct ExpertInputScales {
  static constexpr bool kIsPerExpert = true;

  const float* scales;  // [expert of the model]
  float shared_expert;

  static ExpertInputScales make(const FormatTensors& tensors) {
    return {tensors.expert_scales, tensors.tensor_scale};
  }
  SWITCHYARD_DEVICE float operator()(int expert_idx) const {
    return expert_idx == kSharedExpert ? shared_expert : target::ld(scales + expert_idx);
  }
};

struct NVFP4Quantizer {
  using Element = e2m1;
  using Scale = e4m3;
  static constexpr int kGroupSize = 16;

  float tensor_scale;
  float scale_factor;  // 1 / (6 * tensor_scale): amax times this is the scale group's scale

  SWITCHYARD_DEVICE explicit NVFP4Quantizer(float tensor_scale_in)
      : tensor_scale(tensor_scale_in), scale_factor(target::divide(1.0f, Element::max() * tensor_scale_in)) {}

  struct GroupScale {
    e4m3 stored;
    float factor;
  };
  SWITCHYARD_DEVICE GroupScale scale_of(float amax) const {
    if (!is_finite(amax)) return {e4m3{static_cast<uint8_t>(e4m3::kNanCode)}, kQuietNan};
    const e4m3 scale{static_cast<uint8_t>(target::to_e4m3x2(amax * scale_factor, 0.0f))};
    // A scale group too small for any scale is all zeros.
    return {scale, scale.bits == 0 ? 0.0f : target::divide(1.0f, to_float(scale) * tensor_scale)};
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
    // The first group that ends behind the row.
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

// A scheme makes the quantizer of a message, and the source of the scales of rows that are read back.
template <typename InputScales = OneInputScale>
struct NVFP4 {
  using Quantizer = NVFP4Quantizer;
  static constexpr bool kIsPerExpert = InputScales::kIsPerExpert;

  InputScales input_scales;  // (expert) -> the tensor scale

  static NVFP4 make(const FormatTensors& tensors) { return {InputScales::make(tensors)}; }
  SWITCHYARD_HD static NVFP4ScaleSource scale_source(int hidden, const FormatTensors& tensors,
                                                     const RowGroups& groups) {
    return {reinterpret_cast<const uint8_t*>(tensors.scales),
            {hidden / Quantizer::kGroupSize},
            tensors.tensor_scale,
            groups.tensor_scales,
            groups.row_offsets,
            groups.num_groups};
  }
  SWITCHYARD_DEVICE Quantizer quantizer(int expert_idx) const { return Quantizer(input_scales(expert_idx)); }
};

template <typename Element>
struct TiledMX {
  using Quantizer = MXQuantizer<Element>;
  static constexpr bool kIsPerExpert = false;

  static TiledMX make(const FormatTensors&) { return {}; }
  SWITCHYARD_HD static TiledScaleSource<Element> scale_source(int hidden, const FormatTensors& tensors,
                                                              const RowGroups&) {
    return {reinterpret_cast<const uint8_t*>(tensors.scales), {hidden / Quantizer::kGroupSize}};
  }
  SWITCHYARD_DEVICE Quantizer quantizer(int) const { return {}; }
};

// Scheme: NVFP4<OneInputScale>, NVFP4<ExpertInputScales>, NVFP4 with a functor of the application's, or
// TiledMX<e4m3 | e5m2 | e2m1>.
template <typename Scheme, RowPacking kPacking = RowPacking::kPadded>
struct NVBlockScaledTokenFormat {
  using Input = bf16;
  using Quantizer = typename Scheme::Quantizer;
  static_assert(sizeof(typename Quantizer::Scale) == 1);

  int32_t hidden;  // a multiple of the scheme's scale group
  Scheme scheme;
  uint8_t* output_rows;         // [rows][hidden codes, packed]
  uint8_t* output_scales;       // TiledScaleLayout, of num_scale_rows() rows
  uint32_t* scale_row_offsets;  // [group]: the scale row of its first row; null: not wanted

  static NVBlockScaledTokenFormat make(int hidden, const FormatTensors& tensors) {
    return {hidden, Scheme::make(tensors), reinterpret_cast<uint8_t*>(tensors.rows),
            reinterpret_cast<uint8_t*>(tensors.scales), tensors.scale_row_offsets};
  }
  SWITCHYARD_HD static auto source(int hidden, const FormatTensors& tensors, const RowGroups& groups) {
    const auto scales = Scheme::scale_source(hidden, tensors, groups);
    return EncodedSource<std::remove_const_t<decltype(scales)>>{
        reinterpret_cast<const uint8_t*>(tensors.rows), hidden, scales};
  }
  // Scale rows that hold the scales of so many rows, however these are spread over the groups.
  SWITCHYARD_HD static constexpr uint64_t num_scale_rows(uint64_t max_rows, int num_groups) {
    constexpr uint64_t kTileRows = TiledScaleLayout::kTileRows;
    const uint64_t between_groups =
        kPacking == RowPacking::kTight ? static_cast<uint64_t>(num_groups) * kTileRows : 0;
    return align_up(max_rows, kTileRows) + between_groups;
  }
  // The scale row of a group's first row. Tight: a tile more per group is always enough for the padding of
  // those before, so that no sum over them is needed.
  SWITCHYARD_HD static constexpr int64_t first_scale_row(int group_idx, int64_t expert_begin) {
    constexpr int64_t kTileRows = TiledScaleLayout::kTileRows;
    if (kPacking == RowPacking::kPadded) return expert_begin;
    return (expert_begin / kTileRows + group_idx) * kTileRows;
  }

  SWITCHYARD_HD constexpr GroupedMessageLayout<Quantizer> message_layout() const { return {hidden}; }
  SWITCHYARD_HD constexpr TiledScaleLayout scale_layout() const {
    return {static_cast<int>(message_layout().num_scales())};
  }
  SWITCHYARD_HD constexpr uint32_t encoded_bytes() const { return message_layout().bytes(); }
  SWITCHYARD_HD constexpr uint32_t row_alignment() const {
    return kPacking == RowPacking::kPadded ? TiledScaleLayout::kTileRows : 1;
  }

  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int expert_idx, int worker_idx,
                                int num_workers) const {
    encode_message(scheme.quantizer(expert_idx), hidden, token, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx, int num_workers) const
      requires(!Scheme::kIsPerExpert) {
    encode(token, message, /*expert_idx=*/0, worker_idx, num_workers);
  }

  SWITCHYARD_DEVICE void decode(const std::byte* message, ExpertRow target_row, int worker_idx,
                                int num_workers) const {
    write_row(message, target_row.row,
              first_scale_row(target_row.group_idx, target_row.expert_begin) + target_row.row -
                  target_row.expert_begin,
              worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx, int num_workers) const
      requires(kPacking == RowPacking::kPadded) {
    write_row(message, row, row, worker_idx, num_workers);
  }

  // Rows written where they belong (InPlaceTokenFormat, BesideTokenFormat).
  static constexpr bool kInterleavesRows = true;
  static constexpr uint32_t kStoredRows = TiledScaleLayout::kTileRows;
  SWITCHYARD_HD constexpr uint32_t row_bytes() const { return message_layout().codes_bytes(); }
  SWITCHYARD_HD constexpr uint32_t scales_bytes() const { return message_layout().scales_bytes(); }
  SWITCHYARD_HD constexpr NVBlockScaledTokenFormat with_output(std::byte* rows, std::byte* scales) const {
    return {hidden, scheme, reinterpret_cast<uint8_t*>(rows), reinterpret_cast<uint8_t*>(scales),
            scale_row_offsets};
  }
  SWITCHYARD_DEVICE void encode_in_place(std::byte* token, std::byte* scales) const
      requires(!Scheme::kIsPerExpert) {
    switchyard::encode_in_place(scheme.quantizer(/*expert_idx=*/0), hidden, token, scales);
  }
  SWITCHYARD_DEVICE void encode_beside(const std::byte* token, std::byte* codes, std::byte* scales,
                                       int expert_idx) const {
    encode_groups(scheme.quantizer(expert_idx), hidden, reinterpret_cast<const bf16*>(token), codes,
                  reinterpret_cast<typename Quantizer::Scale*>(scales), target::lane_idx(), kWarpSize);
  }
  // Four tiles, of which lane i has the rows i, i + 32, i + 64 and i + 96, side by side there.
  template <typename Band>
  SWITCHYARD_DEVICE void store_scales(const Band& band, int64_t first_row, int64_t, uint32_t first_byte) const
      requires(kPacking == RowPacking::kPadded) {
    const TiledScaleLayout tiles = scale_layout();
    Vec16 scales[4];
    SWITCHYARD_UNROLL
    for (int i = 0; i < 4; ++i)
      scales[i] = band.load(first_row + i * kWarpSize + target::lane_idx(), first_byte);
    SWITCHYARD_UNROLL
    for (int tile = 0; tile < 4; ++tile) {
      const int column = static_cast<int>(first_byte) + tile * TiledScaleLayout::kTileColumns;
      if (column >= tiles.num_columns) return;
      const uint32_t mask = column_mask(column);
      Vec16 rows;
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i) rows.words[i] = scales[i].words[tile] & mask;
      target::st_16(output_scales + tiles.offset(first_row + target::lane_idx(), column), rows);
    }
  }
  // Of four columns, those that are there.
  SWITCHYARD_DEVICE uint32_t column_mask(int first_column) const {
    const int num_beyond = first_column + TiledScaleLayout::kTileColumns - scale_layout().num_columns;
    return num_beyond > 0 ? 0xffffffffu >> (8 * num_beyond) : 0xffffffffu;
  }
  SWITCHYARD_DEVICE void write_scales(const std::byte* scales, int64_t scale_row, int worker_idx,
                                      int num_workers) const {
    const TiledScaleLayout tiles = scale_layout();
    const auto* four_scales = reinterpret_cast<const uint32_t*>(scales);
    SWITCHYARD_ROLLED
    for (int i = worker_idx; i < tiles.tiles_across(); i += num_workers) {
      target::st(reinterpret_cast<uint32_t*>(output_scales +
                                             tiles.offset(scale_row, i * TiledScaleLayout::kTileColumns)),
                 target::ld(four_scales + i) & column_mask(i * TiledScaleLayout::kTileColumns));
    }
  }

  SWITCHYARD_DEVICE void publish_expert(int group_idx, int64_t expert_begin) const {
    if (scale_row_offsets != nullptr)
      target::st(scale_row_offsets + group_idx,
                 static_cast<uint32_t>(first_scale_row(group_idx, expert_begin)));
  }

 private:
  SWITCHYARD_DEVICE void write_row(const std::byte* message, int64_t row, int64_t scale_row, int worker_idx,
                                   int num_workers) const {
    const GroupedMessageLayout<Quantizer> layout = message_layout();
    copy_bytes(output_rows + row * layout.codes_bytes(), message, layout.codes_bytes(), worker_idx,
               num_workers);
    write_scales(message + layout.scales_offset(), scale_row, worker_idx, num_workers);
  }
};
static_assert(TokenFormat<NVBlockScaledTokenFormat<NVFP4<OneInputScale>>>);
static_assert(InterleavedTokenFormat<NVBlockScaledTokenFormat<NVFP4<OneInputScale>>>);
static_assert(TokenFormat<NVBlockScaledTokenFormat<TiledMX<e4m3>>>);
static_assert(ExpertTokenFormat<NVBlockScaledTokenFormat<TiledMX<e2m1>, RowPacking::kTight>>);
static_assert(ExpertTokenFormat<NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>, RowPacking::kTight>>);
static_assert(BesideTokenFormat<NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>>>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
