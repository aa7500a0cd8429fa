// BF16TokenFormat: tokens travel as they are.
#pragma once

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/format/token_format.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct BF16TokenFormat {
  using Input = bf16;
  static constexpr bool kSendsTokensAsTheyAre = true;

  int32_t hidden;     // a multiple of 8
  bf16* output_rows;  // [rows][hidden]

  SWITCHYARD_HD uint32_t encoded_bytes() const { return static_cast<uint32_t>(hidden) * sizeof(bf16); }
  SWITCHYARD_HD uint32_t row_alignment() const { return 1; }

  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx,
                                int num_workers) const {
    target::copy_row(message, token, encoded_bytes(), worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx,
                                int num_workers) const {
    target::copy_row(output_rows + row * hidden, message, encoded_bytes(), worker_idx, num_workers);
  }
};
static_assert(PlainTokenFormat<BF16TokenFormat>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
