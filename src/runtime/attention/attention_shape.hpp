// Checks of the shape that an Attention is asked for.
#pragma once

#include "switchyard/attention.hpp"

namespace switchyard {

Status check_attention_shape(const AttentionShape& shape);
Status check_attention_tensors(const AttentionShape& shape, const AttentionTensors& tensors);

}  // namespace switchyard
