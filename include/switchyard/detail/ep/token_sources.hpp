// The rows that a token's sum is made of, in shared memory: a warp looks its token's ids up once, and all
// lanes find every row's address and weight there.
#pragma once

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct TokenSource {
  const std::byte* row;  // null: none
  float weight;
};

struct alignas(128) TokenSources {
  static constexpr int kMaxWarps = 1024 / kWarpSize;

  TokenSource of_warp[kMaxWarps][kMaxTopK + 1];  // the last entry: the shared expert

  // Called by a whole warp, once per token: lane k passes the source of row k. Sources that have a row are
  // kept in the order of k, and `last` after them. Returns how many there are.
  SWITCHYARD_DEVICE int gather(TokenSource source, TokenSource last) {
    TokenSource* sources = of_warp[target::warp_idx()];
    const uint32_t present = target::ballot(source.row != nullptr);
    const int num_present = target::popcount(present);
    target::sync_warp();  // no lane needs the previous token's any more
    if (source.row != nullptr) sources[target::popcount(present & ((1u << target::lane_idx()) - 1))] = source;
    if (last.row != nullptr && target::lane_idx() == 0) sources[num_present] = last;
    target::sync_warp();
    return num_present + (last.row != nullptr ? 1 : 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
