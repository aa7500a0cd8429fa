// The rows a token is summed up from, in shared memory: a warp looks its token's ids up once, and all lanes
// find every row's place and weight there.
#pragma once

#include "switchyard/ep/combine_rows.hpp"
#include "switchyard/ep/shape.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct TokenSource {
  const std::byte* row;  // null: none
  float weight;
};

struct TokenSources {
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

// What rows count for in a sum. bf16: their weights.
template <typename Rows>
struct FactorsOf {
  const TokenSource* sources;

  template <int kNumRows>
  SWITCHYARD_DEVICE static FactorsOf load(const TokenSource* sources, int, int) {
    return {sources};
  }
  SWITCHYARD_DEVICE float of(int i) const { return sources[i].weight; }
};
// fp8: and the scales of their groups. A lane has that of one row and one of the groups the warp works on.
template <>
struct FactorsOf<FP8CombineRows> {
  static constexpr int kLanesPerGroup = FP8CombineRows::kGroupSize / FP8CombineRows::kColumns;
  static constexpr int kGroups = kWarpSize / kLanesPerGroup;

  float of_lane;

  template <int kNumRows>
  SWITCHYARD_DEVICE static FactorsOf load(const TokenSource* sources, int hidden, int column) {
    static_assert(kNumRows * kGroups <= kWarpSize);
    const int lane_idx = target::lane_idx(), i = lane_idx / kGroups;
    const int group_idx =
        (column - lane_idx * FP8CombineRows::kColumns) / FP8CombineRows::kGroupSize + lane_idx % kGroups;
    if (i >= kNumRows || group_idx >= hidden / FP8CombineRows::kGroupSize) return {0.0f};
    return {FP8CombineRows::load_factor(sources[i].row, hidden, group_idx, sources[i].weight)};
  }
  SWITCHYARD_DEVICE float of(int i) const {
    return target::shuffle(of_lane, i * kGroups + target::lane_idx() / kLanesPerGroup);
  }
};

// The rows a warp adds up, found by gather().
struct TokenRows {
  const TokenSource* sources;
  int num_sources;
  int hidden;
};

// Adds kNumRows rows from `first` on, Rows::kColumns columns of them. All loads are under way before the
// first is used. A warp works on neighbouring columns; lanes past the end read the last ones.
template <typename Rows, int kNumRows, int kParts>
SWITCHYARD_DEVICE void add_rows(float (&sums)[kParts][kColumnsPerThread], const TokenRows& rows, int first,
                                int column) {
  const TokenSource* sources = rows.sources + first;
  const auto factors = FactorsOf<Rows>::template load<kNumRows>(sources, rows.hidden, column);
  const int place = column < rows.hidden ? column : rows.hidden - Rows::kColumns;
  typename Rows::Chunk loaded[kNumRows];
  SWITCHYARD_UNROLL
  for (int i = 0; i < kNumRows; ++i) loaded[i] = Rows::load(sources[i].row, place);
  SWITCHYARD_UNROLL
  for (int i = 0; i < kNumRows; ++i) Rows::add(sums, loaded[i], factors.of(i));
}

// The weighted sum of a token's rows in fp32, by whole warps, for finish(sums, column): kColumnsPerThread
// columns a call.
template <typename Rows, typename Finish>
SWITCHYARD_DEVICE void sum_token(const TokenRows& rows, int worker_idx, int num_workers, Finish finish) {
  constexpr int kParts = Rows::kColumns / kColumnsPerThread;
  constexpr int kFirst = 8, kNext = 4;  // rows in flight: at first they have the registers of the sums, too
  for (int warp_column = (worker_idx - target::lane_idx()) * Rows::kColumns; warp_column < rows.hidden;
       warp_column += num_workers * Rows::kColumns) {
    const int column = warp_column + target::lane_idx() * Rows::kColumns;
    float sums[kParts][kColumnsPerThread] = {};
    int first = 0;
    if (kFirst <= rows.num_sources) {
      add_rows<Rows, kFirst>(sums, rows, 0, column);
      first = kFirst;
    }
    for (; first + kNext <= rows.num_sources; first += kNext)
      add_rows<Rows, kNext>(sums, rows, first, column);
    for (; first < rows.num_sources; ++first) add_rows<Rows, 1>(sums, rows, first, column);
    if (column >= rows.hidden) continue;
    SWITCHYARD_UNROLL
    for (int part = 0; part < kParts; ++part) finish(sums[part], column + part * kColumnsPerThread);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
