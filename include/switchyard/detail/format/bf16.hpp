// BF16TokenFormat: tokens travel as they are.
#pragma once

#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct BF16Source {
  const bf16* rows;  // [rows][hidden]
  int32_t hidden;

  SWITCHYARD_DEVICE LaneElements load(int64_t row, int chunk_idx) const {
    const bf16* elements = rows + row * hidden + chunk_idx * kElementsPerLane;
    return {{target::ld_16(elements), target::ld_16(elements + 8)}};
  }
};

struct BF16TokenFormat {
  using Input = bf16;
  static constexpr bool kSendsTokensAsTheyAre = true;

  int32_t hidden;     // a multiple of 8
  bf16* output_rows;  // [rows][hidden]

  static BF16TokenFormat make(int hidden, const FormatTensors& tensors) {
    return {hidden, reinterpret_cast<bf16*>(tensors.rows)};
  }
  SWITCHYARD_HD static BF16Source source(int hidden, const FormatTensors& tensors, const RowGroups&) {
    return {reinterpret_cast<const bf16*>(tensors.rows), hidden};
  }

  SWITCHYARD_HD uint32_t encoded_bytes() const { return static_cast<uint32_t>(hidden) * sizeof(bf16); }
  SWITCHYARD_HD constexpr uint32_t row_alignment() const { return 1; }

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
