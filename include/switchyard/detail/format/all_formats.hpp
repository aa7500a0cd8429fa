// The types of all token formats, for code that is compiled for a target: includes the file of every format.
#pragma once

#include "switchyard/detail/format/bf16.hpp"
#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/detail/format/mx.hpp"
#include "switchyard/detail/format/nv_block_scaled.hpp"
#include "switchyard/detail/format/packed_fp8.hpp"
#include "switchyard/detail/format/row_scaled.hpp"
#include "switchyard/token_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// What the library asks of the formats it registers: kernels of both protocols, how one is made over its
// tensors, and how its rows are read back.
template <typename Format>
concept RegisteredFormat = DispatchFormat<Format> && DirectFormat<Format> &&
    requires(int hidden, const FormatTensors& tensors, const RowGroups& groups) {
  { Format::make(hidden, tensors) } -> std::same_as<Format>;
  { Format::source(hidden, tensors, groups).load(int64_t{}, int{}) } -> std::same_as<LaneElements>;
};

// What the registry calls the types of elements and of scales.
constexpr ElementType element_type(bf16) { return ElementType::kBF16; }
constexpr ElementType element_type(e4m3) { return ElementType::kE4M3; }
constexpr ElementType element_type(e5m2) { return ElementType::kE5M2; }
constexpr ElementType element_type(e2m3) { return ElementType::kE2M3; }
constexpr ElementType element_type(e3m2) { return ElementType::kE3M2; }
constexpr ElementType element_type(e2m1) { return ElementType::kE2M1; }
constexpr ScaleType scale_type(float) { return ScaleType::kFloat; }
constexpr ScaleType scale_type(e8m0) { return ScaleType::kE8M0; }
constexpr ScaleType scale_type(e4m3) { return ScaleType::kE4M3; }

// Whether a line of the registry says the same as the type it names: the runtime lays memory out by the line.
template <RegisteredFormat Format>
constexpr bool agrees(const TokenFormatInfo& info) {
  if (info.encodes_by_expert != EncodesByExpert<Format>) return false;
  if (info.interleaves_rows() != InterleavedTokenFormat<Format>) return false;
  if (info.row_alignment != Format{}.row_alignment()) return false;
  if constexpr (requires { typename Format::Quantizer; }) {
    using Quantizer = typename Format::Quantizer;
    return info.element == element_type(typename Quantizer::Element{}) &&
           info.scale == scale_type(typename Quantizer::Scale{}) && info.group_size == Quantizer::kGroupSize;
  } else {
    return info.element == element_type(typename Format::Input{}) && info.scale == ScaleType::kNone &&
           info.group_size == 1;
  }
}

template <TokenFormatKind kKind>
struct FormatOfKind;
#define SWITCHYARD_FORMAT(kind, name, type, ...) \
  template <>                                    \
  struct FormatOfKind<TokenFormatKind::kind> {   \
    using Type = type;                           \
  };
SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_FORMAT)
#undef SWITCHYARD_FORMAT

template <TokenFormatKind kKind>
using FormatOf = typename FormatOfKind<kKind>::Type;

}  // namespace switchyard::inline SWITCHYARD_TARGET
