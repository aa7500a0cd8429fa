// A token format says how a token travels from the rank that has it to the ranks of its experts, and what the
// rows of dispatch's output hold. bf16 travels as it is; the other formats quantise: codes of 4 to 8 bits,
// and a scale for each group of neighbouring elements. docs/formats.md has every format bit by bit.
//
// An application chooses one of the library's by its TokenFormatKind (ExpertParallelConfig::dispatch_format),
// and asks info_of() how large rows and scales are and how they lie in memory. It may also bring a type of
// its own, which is a TokenFormat (types/token_format_concepts.hpp). Nothing here allocates,
// launches or fails with anything but a Status; all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/packing.hpp"
#include "switchyard/detail/format/registry.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/status.hpp"

namespace switchyard {

// The formats that the library has kernels for: an enumerator for each line of detail/format/registry.hpp.
enum class TokenFormatKind {
#define SWITCHYARD_KIND(kind, ...) kind,
  SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_KIND)
#undef SWITCHYARD_KIND
};
inline constexpr TokenFormatKind kTokenFormatKinds[] = {
#define SWITCHYARD_KIND(kind, ...) TokenFormatKind::kind,
    SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_KIND)
#undef SWITCHYARD_KIND
};

// The number format of an element: sign, exponent and mantissa bits.
enum class ElementType { kBF16, kE4M3, kE5M2, kE2M3, kE3M2, kE2M1 };
enum class ScaleType { kNone, kFloat, kE8M0, kE4M3 };
// How the scales of all rows lie in their tensor.
enum class ScalePlacement { kNone, kTransposed, kByRow, kTiled, kPacked };
// Whether a token is encoded once, or once for each of its experts because it is not the same to all of them.
enum class TokenEncoding { kOnce, kByExpert };

constexpr const char* to_string(ElementType element) {
  switch (element) {
    case ElementType::kBF16:
      return "bf16";
    case ElementType::kE4M3:
      return "e4m3";
    case ElementType::kE5M2:
      return "e5m2";
    case ElementType::kE2M3:
      return "e2m3";
    case ElementType::kE3M2:
      return "e3m2";
    case ElementType::kE2M1:
      return "e2m1";
  }
  return "(no element)";
}
constexpr const char* to_string(ScaleType scale) {
  switch (scale) {
    case ScaleType::kNone:
      return "none";
    case ScaleType::kFloat:
      return "float";
    case ScaleType::kE8M0:
      return "e8m0";
    case ScaleType::kE4M3:
      return "e4m3";
  }
  return "(no scale)";
}
constexpr const char* to_string(ScalePlacement placement) {
  switch (placement) {
    case ScalePlacement::kNone:
      return "none";
    case ScalePlacement::kTransposed:
      return "transposed";
    case ScalePlacement::kByRow:
      return "by row";
    case ScalePlacement::kTiled:
      return "tiled";
    case ScalePlacement::kPacked:
      return "packed";
  }
  return "(no placement)";
}

constexpr int bits_of(ElementType element) {
  switch (element) {
    case ElementType::kBF16:
      return 16;
    case ElementType::kE4M3:
    case ElementType::kE5M2:
      return 8;
    case ElementType::kE2M3:
    case ElementType::kE3M2:
      return 6;
    case ElementType::kE2M1:
      return 4;
  }
  return 0;
}
constexpr int bytes_of(ScaleType scale) {
  switch (scale) {
    case ScaleType::kNone:
      return 0;
    case ScaleType::kFloat:
      return 4;
    case ScaleType::kE8M0:
    case ScaleType::kE4M3:
      return 1;
  }
  return 0;
}
constexpr uint32_t row_alignment_of(ScalePlacement placement) {
  switch (placement) {
    case ScalePlacement::kNone:
    case ScalePlacement::kByRow:
      return 1;
    case ScalePlacement::kTransposed:
      return TransposedScaleLayout::kRowAlignment;
    case ScalePlacement::kTiled:
      return TiledScaleLayout::kTileRows;
    case ScalePlacement::kPacked:
      return PackedScaleLayout::kRowAlignment;
  }
  return 1;
}

// What an element of the tensor of scales is: a scale, four of them in a word, or a byte of a scale tile.
enum class ScaleTensorElement { kFloat, kE8M0, kWord, kTileByte };

constexpr int bytes_of(ScaleTensorElement element) {
  switch (element) {
    case ScaleTensorElement::kFloat:
    case ScaleTensorElement::kWord:
      return 4;
    case ScaleTensorElement::kE8M0:
    case ScaleTensorElement::kTileByte:
      return 1;
  }
  return 0;
}

// The tensor of scales as it lies in memory.
struct ScaleTensor {
  ScaleTensorElement element = ScaleTensorElement::kTileByte;
  // 2; 1 for scale tiles, whose bytes have an order of their own, and 0 for a format without scales.
  int num_dimensions = 0;
  uint64_t shape[2] = {0, 0};

  constexpr CheckedSize bytes() const {
    CheckedSize product(static_cast<uint64_t>(num_dimensions == 0 ? 0 : bytes_of(element)));
    for (int i = 0; i < num_dimensions; ++i) product = product * CheckedSize(shape[i]);
    return product;
  }
};

// What there is to know of a format without its type.
struct TokenFormatInfo {
  const char* name;  // as on the command line
  ElementType element;
  int group_size;  // elements that share a scale
  ScaleType scale;
  ScalePlacement placement;
  TokenEncoding encoding;
  // These follow from those above.
  int num_bits;
  int scale_bytes;
  uint32_t row_alignment;  // each expert's rows start at a multiple of it
  bool encodes_by_expert;

  // What `hidden` must be a multiple of, so that groups are whole and a row has a multiple of 16 bytes.
  constexpr int hidden_multiple() const {
    int multiple = group_size;
    while (multiple * num_bits % 128 != 0) multiple += group_size;
    return multiple;
  }
  constexpr uint32_t row_bytes(int hidden) const {
    return packed_bytes(static_cast<uint32_t>(hidden), num_bits);
  }
  // NVFP4: all scales are multiplied by a float, the tensor scale.
  constexpr bool has_tensor_scale() const { return scale == ScaleType::kE4M3; }
  constexpr int num_scales(int hidden) const { return scale_bytes == 0 ? 0 : hidden / group_size; }
  // An encoded token: codes, then scales, each from a multiple of 16.
  constexpr uint32_t encoded_bytes(int hidden) const {
    return align_up(row_bytes(hidden), 16u) +
           align_up(static_cast<uint32_t>(num_scales(hidden) * scale_bytes), 16u);
  }
  // Whether the scales of neighbouring rows lie side by side.
  constexpr bool interleaves_rows() const {
    switch (placement) {
      case ScalePlacement::kNone:
      case ScalePlacement::kByRow:
        return false;
      case ScalePlacement::kTransposed:
      case ScalePlacement::kTiled:
      case ScalePlacement::kPacked:
        return true;
    }
    return false;
  }
  // The scale tensor of max_rows rows.
  constexpr ScaleTensor scale_tensor(uint32_t max_rows, int hidden) const {
    const uint64_t num_groups = static_cast<uint64_t>(num_scales(hidden));
    switch (placement) {
      case ScalePlacement::kNone:
        break;
      case ScalePlacement::kTransposed:
        return {ScaleTensorElement::kFloat,
                2,
                {num_groups, TransposedScaleLayout{num_scales(hidden), max_rows}.stride()}};
      case ScalePlacement::kByRow:
        return {scale == ScaleType::kFloat ? ScaleTensorElement::kFloat : ScaleTensorElement::kE8M0,
                2,
                {max_rows, num_groups}};
      case ScalePlacement::kTiled:
        return {ScaleTensorElement::kTileByte,
                1,
                {TiledScaleLayout{num_scales(hidden)}.bytes(max_rows).value(), 0}};
      case ScalePlacement::kPacked: {
        const PackedScaleLayout layout{num_scales(hidden), max_rows};
        return {ScaleTensorElement::kWord, 2, {static_cast<uint64_t>(layout.num_words()), layout.stride()}};
      }
    }
    return {};
  }
  // The same in bytes.
  constexpr CheckedSize scale_tensor_bytes(uint32_t max_rows, int hidden) const {
    return scale_tensor(max_rows, hidden).bytes();
  }
};

// A value that is none of the enumerators has an answer, too, but no kernels are found for it.
constexpr TokenFormatInfo info_of(TokenFormatKind kind) {
  switch (kind) {
#define SWITCHYARD_INFO(kind, name, type, element, group_size, scale, placement, encoding) \
  case TokenFormatKind::kind:                                                              \
    return {name,                                                                          \
            ElementType::element,                                                          \
            group_size,                                                                    \
            ScaleType::scale,                                                              \
            ScalePlacement::placement,                                                     \
            TokenEncoding::encoding,                                                       \
            bits_of(ElementType::element),                                                 \
            bytes_of(ScaleType::scale),                                                    \
            row_alignment_of(ScalePlacement::placement),                                   \
            TokenEncoding::encoding == TokenEncoding::kByExpert};
    SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_INFO)
#undef SWITCHYARD_INFO
  }
  return {"(no format)",
          ElementType::kBF16,
          1,
          ScaleType::kNone,
          ScalePlacement::kNone,
          TokenEncoding::kOnce,
          16,
          0,
          1,
          false};
}

constexpr const char* to_string(TokenFormatKind kind) { return info_of(kind).name; }

inline Status check_hidden(TokenFormatKind kind, int hidden) {
  const int multiple = info_of(kind).hidden_multiple();
  if (hidden % multiple == 0) return Status();
  return invalid_argument("hidden is %d; format %s needs a multiple of %d", hidden, to_string(kind),
                          multiple);
}

// What combine sends expert rows back as: bf16, or blockwise fp8 (e4m3).
enum class CombineFormat { kBF16, kFP8 };

constexpr const char* to_string(CombineFormat format) {
  return format == CombineFormat::kBF16 ? "bf16" : "fp8";
}
constexpr TokenFormatKind kind_of(CombineFormat format) {
  return format == CombineFormat::kBF16 ? TokenFormatKind::kBF16 : TokenFormatKind::kFP8;
}

// The bytes of an expert row in combine; fp8 in whole lines of memory.
constexpr uint32_t combine_row_bytes(CombineFormat format, int hidden) {
  const uint32_t bytes = info_of(kind_of(format)).encoded_bytes(hidden);
  return format == CombineFormat::kBF16 ? bytes : align_up(bytes, 128u);
}

// Where dispatch leaves its rows: device memory of the caller, which a format is made over.
struct FormatTensors {
  std::byte* rows = nullptr;    // [max_rows][row_bytes]
  std::byte* scales = nullptr;  // as the format places them
  uint32_t max_rows = 0;        // rows both hold
  float tensor_scale = 1;       // NVFP4: element = code * scale * tensor_scale
  // The address of a tensor scale in device memory, which dispatch encodes with instead; null: not given.
  const float* device_tensor_scale = nullptr;
  // NVFP4 by expert: [expert of the model], the tensor scale of its rows; tensor_scale is the shared
  // expert's.
  const float* expert_scales = nullptr;
  // Tiled scales: [group], the scale row of its first row, for dispatch to write; null: not wanted.
  uint32_t* scale_row_offsets = nullptr;
};

}  // namespace switchyard
