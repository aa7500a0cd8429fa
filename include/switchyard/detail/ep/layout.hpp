// Where things lie in the buffers that ranks exchange: each layout gives its size and its pointers; all of it
// is 64-bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/ep/shape.hpp"

namespace switchyard {

// The value of a count cell while nothing has arrived ("MAX_FINITE").
inline constexpr uint64_t kNothingArrived = UINT64_MAX;

// A padding id in a message.
inline constexpr uint16_t kPaddingId = UINT16_MAX;

// A message: encoded token, int32 source token index, uint16[top_k] expert ids; each aligned to 16 bytes.
struct MessageLayout {
  uint32_t encoded_bytes;
  int top_k;

  SWITCHYARD_HD constexpr uint32_t src_token_offset() const { return align_up(encoded_bytes, 16u); }
  SWITCHYARD_HD constexpr uint32_t expert_ids_offset() const { return src_token_offset() + 16; }
  SWITCHYARD_HD constexpr uint32_t bytes() const {
    return expert_ids_offset() + align_up(static_cast<uint32_t>(top_k) * 2u, 16u);
  }
};

// [max_tokens_per_rank][messages_per_token][msg_bytes]
struct DispatchSendLayout {
  int max_tokens_per_rank;
  int messages_per_token;
  uint32_t msg_bytes;

  CheckedSize bytes() const {
    return CheckedSize(max_tokens_per_rank) * CheckedSize(messages_per_token) * CheckedSize(msg_bytes);
  }
  // Either one of a token's messages is kept, or all of them are.
  SWITCHYARD_HD std::byte* message(std::byte* base, int token_idx, int message_idx) const {
    const int kept_idx = messages_per_token == 1 ? 0 : message_idx;
    return base + (static_cast<uint64_t>(token_idx) * messages_per_token + kept_idx) * msg_bytes;
  }
};

// [n_local_experts][n_ranks][max_tokens_per_rank][msg_bytes]
struct DispatchRecvLayout {
  int n_local_experts;
  int n_ranks;
  int max_tokens_per_rank;
  uint32_t msg_bytes;

  CheckedSize bytes() const {
    return CheckedSize(n_local_experts) * CheckedSize(n_ranks) * CheckedSize(max_tokens_per_rank) *
           CheckedSize(msg_bytes);
  }
  SWITCHYARD_HD std::byte* message(std::byte* base, int local_expert_idx, int src_rank, uint32_t slot) const {
    const uint64_t pair_idx = static_cast<uint64_t>(local_expert_idx) * n_ranks + src_rank;
    return base + (pair_idx * max_tokens_per_rank + slot) * msg_bytes;
  }
};

// uint64 [n_local_experts][n_ranks], n_experts cells in all.
struct DispatchCountLayout {
  int n_experts;
  int n_ranks;

  CheckedSize bytes() const { return CheckedSize(n_experts) * CheckedSize(sizeof(uint64_t)); }
  SWITCHYARD_HD uint64_t* cell(uint64_t* base, int local_expert_idx, int src_rank) const {
    return base + local_expert_idx * n_ranks + src_rank;
  }
};

// [max_tokens_per_rank][top_k][msg_bytes]
struct CombineRecvLayout {
  int max_tokens_per_rank;
  int top_k;
  uint32_t msg_bytes;

  CheckedSize bytes() const {
    return CheckedSize(max_tokens_per_rank) * CheckedSize(top_k) * CheckedSize(msg_bytes);
  }
  // Returns whether there is such a row.
  SWITCHYARD_HD bool holds(int token_idx, int k) const {
    return token_idx >= 0 && token_idx < max_tokens_per_rank && k >= 0 && k < top_k;
  }
  SWITCHYARD_HD std::byte* row(std::byte* base, int token_idx, int k) const {
    return base + (static_cast<uint64_t>(token_idx) * top_k + k) * msg_bytes;
  }
};

// uint64 [n_experts]: one cell per expert of the model, wherever it lives.
struct CombineCountLayout {
  int n_experts;

  CheckedSize bytes() const { return CheckedSize(n_experts) * CheckedSize(sizeof(uint64_t)); }
  SWITCHYARD_HD uint64_t* cell(uint64_t* base, int expert_idx) const { return base + expert_idx; }
};

// What a dispatch count cell says: messages sent, and rows beyond one per message. A token that names an
// expert twice is sent once and becomes two rows, so that max_tokens_per_rank slots are always enough.
struct ArrivalCount {
  uint32_t num_messages;
  uint32_t num_extra_rows;

  SWITCHYARD_HD constexpr uint32_t num_rows() const { return num_messages + num_extra_rows; }
  SWITCHYARD_HD constexpr uint64_t pack() const { return uint64_t{num_extra_rows} << 32 | num_messages; }
  SWITCHYARD_HD static constexpr ArrivalCount unpack(uint64_t cell) {
    return {static_cast<uint32_t>(cell), static_cast<uint32_t>(cell >> 32)};
  }
};

}  // namespace switchyard
