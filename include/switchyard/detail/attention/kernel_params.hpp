// What an attention kernel is launched with: the numbers, and the tensors as the target's copy engine sees
// them.
#pragma once

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/target/matrix.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct AttentionParams {
  target::TensorMap queries, keys, values;
  AttentionNumbers numbers;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
