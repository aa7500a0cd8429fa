// What an attention kernel is launched with: the settings, and the tensors as the target's copy engine sees
// them.
#pragma once

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/target/matrix.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct AttentionParams {
  target::TensorMap queries, keys, values;
  AttentionSettings settings;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
