// Where the scales of a step of the matmul lie.
#pragma once

#include <bit>

#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard {

// Of a packed scale, which of those in its word.
struct RowScaleInWord {
  MatmulRowScales kind;
  uint32_t idx;

  SWITCHYARD_HD constexpr float scale(uint32_t word) const {
    if (kind != MatmulRowScales::kPackedE8M0) return std::bit_cast<float>(word);
    return to_float(e8m0{static_cast<uint8_t>(word >> (8 * idx))});
  }
};

// The scales of a consumer's part of a tile.
template <int kNumScales>
struct StepScaleTensors {
  const uint32_t* rows;              // of the first row in the first step
  uint32_t row_stride, word_stride;  // from a row to the next one, and from a word of a row to its next one
  MatmulRowScales row_kind;
  int num_rows;
  const float*
      weights[kNumScales];  // of those columns that share them, in the first step; the next ones follow
  uint32_t num_steps;
};

}  // namespace switchyard
