// The token formats the library's kernels are made for, as values: what the runtime must know of a format
// without knowing its type. docs/formats.md says what they are.
#pragma once

#include <cstddef>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/packing.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/status.hpp"

namespace switchyard {

enum class TokenFormatKind {
  kBF16,
  kFP8,            // BlockwiseFP8TokenFormat<e4m3>
  kFP8E5M2,        // BlockwiseFP8TokenFormat<e5m2>
  kMXFP8,          // MXTokenFormat<e4m3>
  kMXFP8E5M2,      // MXTokenFormat<e5m2>
  kMXFP6,          // MXTokenFormat<e2m3>
  kMXFP6E3M2,      // MXTokenFormat<e3m2>
  kMXFP4,          // MXTokenFormat<e2m1>
  kNVFP4,          // NVBlockScaledTokenFormat<NVFP4<OneInputScale>>
  kNVFP4ByExpert,  // NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>>
  kMXFP8Tiled,     // NVBlockScaledTokenFormat<TiledMX<e4m3>>
  kMXFP4Tiled,     // NVBlockScaledTokenFormat<TiledMX<e2m1>>
};
inline constexpr int kNumTokenFormats = 12;

enum class ScalePlacement { kNone, kTransposed, kByRow, kTiled };

struct TokenFormatInfo {
  const char* name;  // as on the command line
  int num_bits;      // of an element
  int group_size;    // elements that share a scale
  int scale_bytes;
  ScalePlacement placement;
  uint32_t row_alignment;  // each expert's rows start at a multiple of it
  // Whether a token is not the same to all of its experts, so that it is encoded for each.
  bool encodes_by_expert = false;

  // Of what `hidden` must be a multiple: whole groups, and rows of whole 16 bytes.
  constexpr int hidden_multiple() const {
    int multiple = group_size;
    while (multiple * num_bits % 128 != 0) multiple += group_size;
    return multiple;
  }
  constexpr uint32_t row_bytes(int hidden) const {
    return packed_bytes(static_cast<uint32_t>(hidden), num_bits);
  }
  constexpr int num_scales(int hidden) const { return scale_bytes == 0 ? 0 : hidden / group_size; }
  // An encoded token: codes, then scales, each from a multiple of 16.
  constexpr uint32_t encoded_bytes(int hidden) const {
    return align_up(row_bytes(hidden), 16u) +
           align_up(static_cast<uint32_t>(num_scales(hidden) * scale_bytes), 16u);
  }
  // Whether the scales of neighbouring rows lie side by side.
  constexpr bool interleaves_rows() const {
    return placement == ScalePlacement::kTransposed || placement == ScalePlacement::kTiled;
  }
  // Of the scales of so many rows.
  constexpr CheckedSize scale_tensor_bytes(uint32_t max_rows, int hidden) const {
    switch (placement) {
      case ScalePlacement::kNone:
        break;
      case ScalePlacement::kTransposed:
        return TransposedScaleLayout{num_scales(hidden), max_rows}.bytes();
      case ScalePlacement::kByRow:
        return CheckedSize(max_rows) * CheckedSize(static_cast<uint64_t>(num_scales(hidden) * scale_bytes));
      case ScalePlacement::kTiled:
        return TiledScaleLayout{num_scales(hidden)}.bytes(max_rows);
    }
    return CheckedSize(0);
  }
};

constexpr TokenFormatInfo info_of(TokenFormatKind kind) {
  switch (kind) {
    case TokenFormatKind::kBF16:
      break;
    case TokenFormatKind::kFP8:
      return {"fp8", 8, 128, 4, ScalePlacement::kTransposed, TransposedScaleLayout::kRowAlignment};
    case TokenFormatKind::kFP8E5M2:
      return {"fp8-e5m2", 8, 128, 4, ScalePlacement::kTransposed, TransposedScaleLayout::kRowAlignment};
    case TokenFormatKind::kMXFP8:
      return {"mxfp8", 8, 32, 1, ScalePlacement::kByRow, 1};
    case TokenFormatKind::kMXFP8E5M2:
      return {"mxfp8-e5m2", 8, 32, 1, ScalePlacement::kByRow, 1};
    case TokenFormatKind::kMXFP6:
      return {"mxfp6", 6, 32, 1, ScalePlacement::kByRow, 1};
    case TokenFormatKind::kMXFP6E3M2:
      return {"mxfp6-e3m2", 6, 32, 1, ScalePlacement::kByRow, 1};
    case TokenFormatKind::kMXFP4:
      return {"mxfp4", 4, 32, 1, ScalePlacement::kByRow, 1};
    case TokenFormatKind::kNVFP4:
      return {"nvfp4", 4, 16, 1, ScalePlacement::kTiled, TiledScaleLayout::kTileRows};
    case TokenFormatKind::kNVFP4ByExpert:
      return {"nvfp4-by-expert", 4, 16, 1, ScalePlacement::kTiled, TiledScaleLayout::kTileRows, true};
    case TokenFormatKind::kMXFP8Tiled:
      return {"mxfp8-tiled", 8, 32, 1, ScalePlacement::kTiled, TiledScaleLayout::kTileRows};
    case TokenFormatKind::kMXFP4Tiled:
      return {"mxfp4-tiled", 4, 32, 1, ScalePlacement::kTiled, TiledScaleLayout::kTileRows};
  }
  return {"bf16", 16, 8, 0, ScalePlacement::kNone, 1};
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

// Of an expert row on its way back; fp8 in whole lines of memory.
constexpr uint32_t combine_row_bytes(CombineFormat format, int hidden) {
  const uint32_t bytes = info_of(kind_of(format)).encoded_bytes(hidden);
  return format == CombineFormat::kBF16 ? bytes : align_up(bytes, 128u);
}

// Where dispatch leaves its rows.
struct FormatTensors {
  std::byte* rows = nullptr;    // [max_rows][row_bytes]
  std::byte* scales = nullptr;  // as the format places them
  uint32_t max_rows = 0;        // rows both hold
  float tensor_scale = 1;       // NVFP4: element = code * scale * tensor_scale
  // NVFP4 by expert: [expert of the model], the tensor scale of its rows; tensor_scale is the shared
  // expert's.
  const float* expert_scales = nullptr;
  // Tiled scales: [group], the scale row of its first row, for dispatch to write; null: nobody asks.
  uint32_t* scale_row_offsets = nullptr;
};

}  // namespace switchyard
