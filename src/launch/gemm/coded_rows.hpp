// Rows in any of the library's token formats, which the kernel is told when it is launched: a kernel for each
// would be hundreds.
#pragma once

#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/gemm/tiled/row_decoding.hpp"
#include "switchyard/detail/gemm/tiled/tile_grid.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct CodedRows {
  static constexpr bool kDecodes = true;

  RowCodes codes;

  template <typename Visit>
  SWITCHYARD_DEVICE void visit(uint32_t inner, const Visit& visit_source) const {
    const RowGroups no_groups{};  // tensor_scale() knows them
    const int hidden = static_cast<int>(inner);
    switch (codes.format) {
#define SWITCHYARD_CASE(kind, ...)                                                             \
  case TokenFormatKind::kind:                                                                  \
    if constexpr (TokenFormatKind::kind != TokenFormatKind::kBF16)                             \
      visit_source(FormatOf<TokenFormatKind::kind>::source(hidden, codes.tensors, no_groups)); \
    return;
      SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_CASE)
#undef SWITCHYARD_CASE
    }
  }
  SWITCHYARD_DEVICE float tensor_scale(const GroupRows& groups, uint32_t row) const {
    const float of_others = codes.tensors.device_tensor_scale != nullptr
                                ? target::ld(codes.tensors.device_tensor_scale)
                                : codes.tensors.tensor_scale;
    if (codes.group_tensor_scales == nullptr) return of_others;
    const uint32_t group_idx = group_of_row(groups, row);
    return group_idx < codes.first_scaled_group
               ? of_others
               : target::ld(codes.group_tensor_scales + (group_idx - codes.first_scaled_group));
  }
};
static_assert(MatmulRowDecoding<CodedRows>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
