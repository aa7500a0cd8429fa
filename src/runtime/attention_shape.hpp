// Checks of what an Attention is asked to be.
#pragma once

#include "switchyard/attention.hpp"

namespace switchyard {

Status check_attention_shape(const AttentionShape& shape);
Status check_attention_tensors(const AttentionShape& shape, const AttentionTensors& tensors);

}  // namespace switchyard
