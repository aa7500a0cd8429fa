// Where the scale of a row lies in the word that a step of the matmul has loaded for it.
#pragma once

#include <bit>

#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard {

struct RowScaleInWord {
  MatmulRowScales kind;
  uint32_t idx;  // of a packed scale, among those of the word

  SWITCHYARD_HD constexpr float scale(uint32_t word) const {
    if (kind == MatmulRowScales::kFloat) return std::bit_cast<float>(word);
    return to_float(e8m0{static_cast<uint8_t>(word >> (8 * idx))});
  }
};

}  // namespace switchyard
