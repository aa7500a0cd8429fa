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

// What the rows of a warp count for. bf16: their weights.
template <typename Rows>
struct RowFactors {
  const TokenSource* sources;

  template <int kNumRows>
  SWITCHYARD_DEVICE static RowFactors load(const TokenSource* sources, int, int) {
    return {sources};
  }
  SWITCHYARD_DEVICE float of(int i) const { return sources[i].weight; }
};
// fp8: and the scales of their groups. A lane has that of one row and one of the groups the warp works on.
template <>
struct RowFactors<FP8CombineRows> {
  static constexpr int kLanesPerGroup = FP8CombineRows::kGroupSize / FP8CombineRows::kColumns;
  static constexpr int kGroups = kWarpSize / kLanesPerGroup;

  float of_lane;

  template <int kNumRows>
  SWITCHYARD_DEVICE static RowFactors load(const TokenSource* sources, int hidden, int warp_column) {
    static_assert(kNumRows * kGroups <= kWarpSize);
    const int i = target::lane_idx() / kGroups;
    const int group_idx = warp_column / FP8CombineRows::kGroupSize + target::lane_idx() % kGroups;
    if (i >= kNumRows || group_idx >= hidden / FP8CombineRows::kGroupSize) return {0.0f};
    return {FP8CombineRows::load_factor(sources[i].row, hidden, group_idx, sources[i].weight)};
  }
  SWITCHYARD_DEVICE float of(int i) const {
    return target::shuffle(of_lane, i * kGroups + target::lane_idx() / kLanesPerGroup);
  }
};

// The weighted sum of a token's rows in fp32, for a warp's columns at a time.
template <typename Rows>
struct RowSum {
  static constexpr int kParts = Rows::kColumns / kColumnsPerThread;

  const TokenSource* sources;
  int num_sources;
  int hidden;

  // By whole warps. Calls finish(column, sums) for eight columns at a time.
  template <typename Finish>
  SWITCHYARD_DEVICE void run(int worker_idx, int num_workers, Finish finish) const {
    for (int warp_column = (worker_idx - target::lane_idx()) * Rows::kColumns; warp_column < hidden;
         warp_column += num_workers * Rows::kColumns) {
      float sums[kParts][kColumnsPerThread] = {};
      add_all(sums, warp_column);
      const int column = warp_column + target::lane_idx() * Rows::kColumns;
      SWITCHYARD_UNROLL
      for (int part = 0; part < kParts; ++part)
        if (column < hidden) finish(column + part * kColumnsPerThread, sums[part]);
    }
  }

  SWITCHYARD_DEVICE void add_all(float (&sums)[kParts][kColumnsPerThread], int warp_column) const {
    constexpr int kFirst = 8, kNext = 4;
    int first = 0;
    // The first loads have the registers of the sums, too.
    if (kFirst <= num_sources) {
      add_rows<kFirst>(sums, 0, warp_column);
      first = kFirst;
    }
    for (; first + kNext <= num_sources; first += kNext) add_rows<kNext>(sums, first, warp_column);
    for (; first < num_sources; ++first) add_rows<1>(sums, first, warp_column);
  }

  // All loads are under way before the first is used. Lanes past the end read the last columns.
  template <int kNumRows>
  SWITCHYARD_DEVICE void add_rows(float (&sums)[kParts][kColumnsPerThread], int first,
                                  int warp_column) const {
    const auto factors = RowFactors<Rows>::template load<kNumRows>(sources + first, hidden, warp_column);
    const int column = warp_column + target::lane_idx() * Rows::kColumns;
    const int column_read = column < hidden ? column : hidden - Rows::kColumns;
    typename Rows::Chunk loaded[kNumRows];
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumRows; ++i) loaded[i] = Rows::load(sources[first + i].row, column_read);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumRows; ++i) Rows::add(sums, loaded[i], factors.of(i));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
