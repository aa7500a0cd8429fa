// Which tokens of a rank its shared expert works on.
#pragma once

#include <cstdint>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// The shared expert, where one is fused in: tokens [first_token, first_token + num_tokens) of this rank are
// rows [0, num_tokens) of its own output, group 0.
struct SharedExpertTokens {
  int32_t num_groups;  // 1, or 0: there is none
  int32_t first_token;
  int32_t num_tokens;

  // Returns the token's row, or -1 if it has none.
  SWITCHYARD_HD constexpr int row_of(int token_idx) const {
    const int row = token_idx - first_token;
    return row >= 0 && row < num_tokens ? row : -1;
  }
};

}  // namespace switchyard
