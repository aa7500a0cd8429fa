// What an Attention launches for a shape: a pure function of the shape, of what the tensors hold, and of the
// device.
#pragma once

#include "switchyard/attention.hpp"

namespace switchyard {

// What the choice needs to know of a device.
struct AttentionDevice {
  uint32_t num_multiprocessors = 0;
  uint64_t l2_bytes = 0;
};

// The caller must have checked the shape. `has_key_lengths`: the tensors say how many keys each sequence has.
AttentionChoice choose_attention(const AttentionShape& shape, bool has_key_lengths,
                                 const AttentionDevice& device);

}  // namespace switchyard
