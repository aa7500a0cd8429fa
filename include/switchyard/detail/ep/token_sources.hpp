// The rows a token is summed up from, in shared memory: a warp looks its token's ids up once, and all lanes
// find every row's place and weight there.
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

  TokenSource of_warp[kMaxWarps][kMaxTopK + 1];  // and the shared expert's

  // By a whole warp, once a token: lane k knows row k. They are kept in the order of k without what is not
  // there, and `last` behind them. Says how many there are.
  SWITCHYARD_DEVICE int gather(TokenSource source, TokenSource last) {
    TokenSource* sources = of_warp[target::warp_idx()];
    const uint32_t present = target::ballot(source.row != nullptr);
    const int num_present = target::popcount(present);
    target::sync_warp();  // the last token's are no longer needed
    if (source.row != nullptr) sources[target::popcount(present & ((1u << target::lane_idx()) - 1))] = source;
    if (last.row != nullptr && target::lane_idx() == 0) sources[num_present] = last;
    target::sync_warp();
    return num_present + (last.row != nullptr ? 1 : 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
