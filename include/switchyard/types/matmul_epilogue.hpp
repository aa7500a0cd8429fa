// What a grouped matmul does with its sums before it stores them.
#pragma once

#include <cstdint>
#include <limits>

#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard {

// How gate and up become one number. With an activation, half of the weights' columns are gates and the other
// half ups, and an output has half as many columns as the weights.
//   kSiLU:          gate * sigmoid(gate) * up
//   kGELU:          gelu(gate) * up, in the form with tanh. The form with erf differs from it by less than
//                   0.0005, which is less than the rounding to bf16 from 0.25 on; there is no kernel for it.
//   kClampedSwiGLU: gate * sigmoid(1.702 * gate) * (up + 1), where gate is at most 7 and up within -7..7
enum class Activation { kNone, kSiLU, kGELU, kClampedSwiGLU };

constexpr const char* to_string(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kSiLU:
      return "silu";
    case Activation::kGELU:
      return "gelu";
    case Activation::kClampedSwiGLU:
      return "clamped-swiglu";
  }
  return "(no activation)";
}

// Where the gates are among the columns of the weights: the first half of them, or every second one.
enum class GateLayout { kStacked, kInterleaved };

// What the output holds: bf16, or e4m3 codes with a scale for each 128 elements of a row.
enum class MatmulOutput {
  kBF16,
  kFP8,      // scales in a tensor of their own, as the next matmul in fp8 reads them
  kFP8Rows,  // each row's codes, then its scales, combine_row_bytes() apart, as a combine in fp8 reads them
};

constexpr const char* to_string(MatmulOutput output) {
  switch (output) {
    case MatmulOutput::kBF16:
      return "bf16";
    case MatmulOutput::kFP8:
      return "fp8";
    case MatmulOutput::kFP8Rows:
      return "fp8-rows";
  }
  return "(no output)";
}

// The kinds of epilogues that there are kernels for.
enum class MatmulEpilogue {
  kPlain,      // sums are rounded to bf16
  kAffine,     // a bias of the expert is added, a weight of the row multiplied
  kGated,      // with an activation, to bf16
  kGatedFP8,   // with an activation, to fp8
  kAffineFP8,  // as kAffine, to rows of fp8 with their scales
};

// Every activation is gate * sigmoid(gate * (linear + cubic * gate^2)) * (up + up_offset), with gate at most
// `limit` and up within -limit..limit.
struct ActivationNumbers {
  float linear = 1;
  float cubic = 0;
  float limit = std::numeric_limits<float>::infinity();
  float up_offset = 0;
};

constexpr ActivationNumbers numbers_of(Activation activation) {
  // gelu(x) = x * (1 + tanh(y)) / 2 = x * sigmoid(2 * y), y = sqrt(2 / pi) * (x + 0.044715 * x^3)
  constexpr float kTwiceRoot = 1.5957691216057308f;
  switch (activation) {
    case Activation::kNone:
    case Activation::kSiLU:
      return {};
    case Activation::kGELU:
      return {.linear = kTwiceRoot, .cubic = kTwiceRoot * 0.044715f};
    case Activation::kClampedSwiGLU:
      return {.linear = 1.702f, .limit = 7, .up_offset = 1};
  }
  return {};
}

// Whether there is a kernel. Those that no choice comes to are left out.
constexpr bool has_matmul_kernel(MatmulEpilogue epilogue, const MatmulTuning& tuning) {
  if (epilogue == MatmulEpilogue::kPlain) return true;
  // Columns that share a scale would be those of several warps.
  if (is_coded(tuning.weights))
    return epilogue != MatmulEpilogue::kGatedFP8 && epilogue != MatmulEpilogue::kAffineFP8;
  if (tuning.sharing != MatmulSharing::kNone || tuning.stage_inner > 128) return false;
  // The scale of an output needs 128 gates and 128 ups.
  if (epilogue == MatmulEpilogue::kGatedFP8)
    return tuning.element == MatmulElement::kFP8 && tuning.tile_columns == 256;
  return tuning.tile_rows > 64 || tuning.tile_columns < 256;
}

// Whether there is a kernel that decodes the rows itself: of those that choose_decoding_tuning() comes to.
constexpr bool has_decoding_matmul_kernel(const MatmulTuning& tuning) {
  if (is_coded(tuning.weights)) return true;
  for (const MatmulTuning& chosen : kDecodingTunings)
    if (tuning == chosen) return true;
  return false;
}

// Returns the tuning for a matmul with this epilogue, of those that have a kernel.
constexpr MatmulTuning choose_matmul_tuning(MatmulEpilogue epilogue, MatmulElement element,
                                            int64_t rows_per_group, int64_t columns, int64_t inner) {
  const MatmulTuning tuning = choose_matmul_tuning(element, rows_per_group, columns, inner);
  // Of the two that store fp8 the larger is faster with few rows, too (docs/journal/matmul.md).
  return has_matmul_kernel(epilogue, tuning) ? tuning
                                             : MatmulTuning{128, 256, 128, 4, MatmulSharing::kNone, element};
}

}  // namespace switchyard
