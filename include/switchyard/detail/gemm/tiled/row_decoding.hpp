// Rows that are codes: the matrix unit takes bf16, so two warps decode each stage of them on its way.
#pragma once

#include <concepts>

#include "switchyard/detail/gemm/tiled/kernel_params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// kDecodes: whether rows are codes. If they are, visit(inner, f) calls f(source) once, and
// source.load(row, chunk_idx, tensor_scale) returns 16 elements of a row of `inner` elements in bf16.
// tensor_scale(groups, row) is what all rows of a row's group are multiplied by.
template <typename T>
concept MatmulRowDecoding = requires(const T& rows) {
  { T::kDecodes } -> std::convertible_to<bool>;
};

// The copy engine loads the rows as they are.
struct CopiedRows {
  static constexpr bool kDecodes = false;
};
static_assert(MatmulRowDecoding<CopiedRows>);

template <MatmulRowDecoding Rows>
struct DecodingMatmulParams {
  MatmulParams matmul;
  Rows rows;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
