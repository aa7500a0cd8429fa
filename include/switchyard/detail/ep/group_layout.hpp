// How the rows of a rank's groups (the shared expert's and each local expert's) lie one behind the other.
#pragma once

#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

struct GroupLayout {
  uint32_t alignment = 1;  // every group begins at a multiple of it
  uint32_t capacity = 0;   // masked: what every group takes up, a multiple of the alignment; ragged: 0

  // Returns the rows that a group of so many takes up. A masked group that has more than its capacity takes
  // up more, so that the rank's rows exceed what it has room for.
  SWITCHYARD_HD constexpr uint32_t taken_by(uint32_t num_rows) const {
    const uint32_t aligned = alignment == 1 ? num_rows : align_up(num_rows, alignment);
    return aligned > capacity ? aligned : capacity;
  }
};

}  // namespace switchyard
