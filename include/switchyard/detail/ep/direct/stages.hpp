// How the direct dispatch uses the shared memory behind its counts: stages, each with a token, its scales if
// tokens are encoded, and its codes if they do not overwrite the token; and how the warps of a block share
// tokens and stages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard {

struct DirectStages {
  static constexpr int kMaxStages = kEpKernelSizes.max_token_stages;

  // These lie one after the other, each a multiple of 128.
  uint32_t token_bytes;
  uint32_t codes_bytes;   // 0: codes overwrite the token
  uint32_t scales_bytes;  // 0: nothing is encoded
  int num_stages;

  SWITCHYARD_HD static constexpr DirectStages fit(uint32_t token_bytes, uint32_t codes_bytes,
                                                  uint32_t scales_bytes, uint64_t num_bytes) {
    DirectStages stages{align_up(token_bytes, 128u), align_up(codes_bytes, 128u),
                        align_up(scales_bytes, 128u), 0};
    // Shared memory is counted in 32 bits: their division is faster.
    const uint32_t fitting = static_cast<uint32_t>(num_bytes) / static_cast<uint32_t>(stages.stage_bytes());
    stages.num_stages = fitting < kMaxStages ? static_cast<int>(fitting) : kMaxStages;
    return stages;
  }
  template <typename Format>
  SWITCHYARD_HD static constexpr DirectStages of(const Format& format, int hidden, uint64_t num_bytes) {
    const uint32_t token_bytes =
        static_cast<uint32_t>(hidden) * static_cast<uint32_t>(sizeof(typename Format::Input));
    if constexpr (BesideTokenFormat<Format>)
      return fit(token_bytes, format.row_bytes(), scale_row_bytes(format), num_bytes);
    else if constexpr (InPlaceTokenFormat<Format>)
      return fit(token_bytes, 0, scale_row_bytes(format), num_bytes);
    else
      return fit(token_bytes, 0, 0, num_bytes);
  }

  SWITCHYARD_HD constexpr uint64_t stage_bytes() const {
    return uint64_t{token_bytes} + codes_bytes + scales_bytes;
  }
  SWITCHYARD_HD constexpr uint64_t bytes() const { return static_cast<uint64_t>(num_stages) * stage_bytes(); }
  template <typename Byte>
  SWITCHYARD_HD Byte* stage(Byte* memory, int stage_idx) const {
    return memory + static_cast<uint64_t>(stage_idx) * stage_bytes();
  }
  template <typename Byte>
  SWITCHYARD_HD Byte* codes(Byte* memory, int stage_idx) const {
    return stage(memory, stage_idx) + (codes_bytes == 0 ? 0 : token_bytes);
  }
  template <typename Byte>
  SWITCHYARD_HD Byte* scales(Byte* memory, int stage_idx) const {
    return stage(memory, stage_idx) + token_bytes + codes_bytes;
  }
};

// Carrier c has tokens c, c + num_carriers, ... If there are stages and warps enough, every token has its
// own. Tokens that are encoded have a carrier per stage, as far as there are warps, since encoding takes
// longest. Others have carriers with two stages: the next token is loaded into one while the other's is sent.
struct Carriers {
  int num_carriers;
  int stages_each;  // 1 or 2

  SWITCHYARD_HD static constexpr Carriers share(int num_tokens, const DirectStages& stages, int num_warps) {
    const int num_stages = stages.num_stages;
    if (num_tokens <= num_stages && num_tokens <= num_warps) return {num_tokens, 1};
    if (stages.scales_bytes > 0) return {num_stages < num_warps ? num_stages : num_warps, 1};
    if (num_stages == 1) return {1, 1};
    return {num_stages / 2 < num_warps ? num_stages / 2 : num_warps, 2};
  }

  SWITCHYARD_HD constexpr int stage_of_turn(int carrier_idx, int turn) const {
    return carrier_idx * stages_each + (turn & (stages_each - 1));
  }
  // The parity of the barrier phase that completes when the turn's token is in its stage.
  SWITCHYARD_HD constexpr uint32_t parity_of_turn(int turn) const {
    return static_cast<uint32_t>(turn >> (stages_each - 1)) & 1u;
  }
};

}  // namespace switchyard
