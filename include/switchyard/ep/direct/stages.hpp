// How the direct dispatch uses its shared memory behind what it counts with: stages, a token each, and where
// tokens are encoded a batch of tokens' scales; and how the warps of a block share tokens and stages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/base/checked.hpp"
#include "switchyard/format/token_format.hpp"

namespace switchyard {

struct DirectStages {
  static constexpr int kMaxStages = 16;
  // What a batch of scales may take, and no more than a third of the room: a batch is written at once, so
  // that scales of neighbouring rows, which share lines of memory, meet in the cache.
  static constexpr uint32_t kMaxBatchBytes = 56 * 1024;

  uint32_t stage_bytes;   // a multiple of 128
  uint32_t scales_bytes;  // of a token, with what keeps the next one's apart; 0: nothing is encoded
  uint32_t order_bytes;   // of a token: a uint16 for each of its rows
  int num_stages;
  int batch_tokens;

  SWITCHYARD_HD static constexpr DirectStages fit(uint32_t token_bytes, uint32_t scales_bytes,
                                                  uint32_t order_bytes, uint64_t room) {
    DirectStages stages{align_up(token_bytes, 128u), scales_bytes, order_bytes, 0, 0};
    if (scales_bytes > 0) {
      const uint64_t batch_bytes = room / 3 < kMaxBatchBytes ? room / 3 : kMaxBatchBytes;
      stages.batch_tokens = static_cast<int>(batch_bytes / (scales_bytes + order_bytes));
    }
    const uint64_t fitting = (room - stages.batch_bytes()) / stages.stage_bytes;
    stages.num_stages = fitting < kMaxStages ? static_cast<int>(fitting) : kMaxStages;
    return stages;
  }
  template <typename Format>
  SWITCHYARD_HD static constexpr DirectStages of(const Format& format, int hidden, int top_k, uint64_t room) {
    const uint32_t token_bytes =
        static_cast<uint32_t>(hidden) * static_cast<uint32_t>(sizeof(typename Format::Input));
    if constexpr (!InPlaceTokenFormat<Format>)
      return fit(token_bytes, 0, 0, room);
    else if constexpr (Format::kInterleavesRows)
      // Lanes read different tokens' scales: an odd number of words apart they lie in different banks.
      return fit(token_bytes, (ceil_div(format.scales_bytes(), 4u) | 1u) * 4u,
                 align_up(static_cast<uint32_t>(top_k) * 2u, 4u), room);
    else
      return fit(token_bytes, align_up(format.scales_bytes(), 16u), 0, room);
  }

  SWITCHYARD_HD constexpr uint64_t batch_bytes() const {
    return align_up<uint64_t>(static_cast<uint64_t>(batch_tokens) * (scales_bytes + order_bytes), 16);
  }
  SWITCHYARD_HD constexpr uint64_t bytes() const {
    return static_cast<uint64_t>(num_stages) * stage_bytes + batch_bytes();
  }
  template <typename Byte>
  SWITCHYARD_HD Byte* stage(Byte* room, int stage_idx) const {
    return room + static_cast<uint64_t>(stage_idx) * stage_bytes;
  }
  // Of the batch's token `idx`.
  template <typename Byte>
  SWITCHYARD_HD Byte* scales(Byte* room, int idx) const {
    return stage(room, num_stages) + static_cast<uint64_t>(idx) * scales_bytes;
  }
  // The rows of a batch in the order of their experts.
  template <typename Byte>
  SWITCHYARD_HD uint16_t* order(Byte* room) const {
    return reinterpret_cast<uint16_t*>(scales(room, batch_tokens));
  }
};
static_assert(DirectStages::kMaxBatchBytes / sizeof(uint16_t) <= UINT16_MAX);

// Carrier c has tokens c, c + num_carriers, ... Where tokens go as they are, the next one comes into its
// other stage while it sends one; where there are stages enough, every token has its own. Where tokens are
// encoded, that takes longest: as many warps as there are stages do it.
struct Carriers {
  int num_carriers;
  int stages_each;

  SWITCHYARD_HD static constexpr Carriers share(int num_tokens, const DirectStages& stages, int num_warps) {
    const int num_stages = stages.num_stages;
    if (num_tokens <= num_stages && num_tokens <= num_warps) return {num_tokens, 1};
    if (stages.scales_bytes > 0) return {num_stages < num_warps ? num_stages : num_warps, 1};
    if (num_stages == 1) return {1, 1};
    return {num_stages / 2 < num_warps ? num_stages / 2 : num_warps, 2};
  }
};

}  // namespace switchyard
