// The weighted sum of a token's rows in fp32, for a warp's columns at a time. Rows of bf16 are loaded
// straight into registers. Rows of fp8 come through shared memory, by bulk copies: a lane that loaded sixteen
// codes would have to keep them beside sixteen sums, so that too few loads would be in flight.
#pragma once

#include "switchyard/detail/ep/combine_rows.hpp"
#include "switchyard/detail/ep/token_sources.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The alignment of the memory behind combine_wait's shared struct (slotted: TokenSources).
inline constexpr uint64_t kRowSumAlignment = 128;
static_assert(sizeof(TokenSources) % kRowSumAlignment == 0);

struct TokenRows {
  const TokenSource* sources;
  int num_sources;
  int hidden;
};

// Constructed by whole warps, once what the rows are read from has been acquired. `stages` has kBytesPerWarp
// for each warp, at a multiple of kRowSumAlignment. run() calls finish(column, sums) for eight columns at a
// time.
template <typename Rows>
class RowSum;

template <>
class RowSum<BF16CombineRows> {
 public:
  static constexpr uint64_t kBytesPerWarp = 0;

  SWITCHYARD_DEVICE explicit RowSum(std::byte*) {}

  // Up to eight loads of a thread are in flight: of few rows, those of several columns.
  template <typename Finish>
  SWITCHYARD_DEVICE void run(const TokenRows& rows, int worker_idx, int num_workers, Finish finish) {
    const int column = worker_idx * kColumnsPerThread, stride = num_workers * kColumnsPerThread;
    if (rows.num_sources <= kMaxLoads / 4)
      sum_few<4>(rows, column, stride, finish);
    else if (rows.num_sources <= kMaxLoads / 2)
      sum_few<2>(rows, column, stride, finish);
    else if (rows.num_sources < kMaxLoads)
      sum_few<1>(rows, column, stride, finish);
    else
      sum_many(rows, column, stride, finish);
  }

 private:
  static constexpr int kMaxLoads = kEpKernelSizes.first_rows_in_flight;

  // Sums up to kMaxLoads / kVectors rows.
  template <int kVectors, typename Finish>
  SWITCHYARD_DEVICE static void sum_few(const TokenRows& rows, int first_column, int stride, Finish finish) {
    constexpr int kRows = kMaxLoads / kVectors;
    for (int column = first_column; column < rows.hidden; column += kVectors * stride) {
      Vec16 loaded[kRows][kVectors] = {};
      SWITCHYARD_UNROLL
      for (int row_idx = 0; row_idx < kRows; ++row_idx) {
        SWITCHYARD_UNROLL
        for (int i = 0; i < kVectors; ++i)
          if (row_idx < rows.num_sources && column + i * stride < rows.hidden)
            loaded[row_idx][i] = BF16CombineRows::load(rows.sources[row_idx].row, column + i * stride);
      }
      SWITCHYARD_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (column + i * stride >= rows.hidden) break;
        float sums[kColumnsPerThread] = {};
        SWITCHYARD_UNROLL
        for (int row_idx = 0; row_idx < kRows; ++row_idx)
          if (row_idx < rows.num_sources) accumulate(sums, loaded[row_idx][i], rows.sources[row_idx].weight);
        finish(column + i * stride, sums);
      }
    }
  }

  template <typename Finish>
  SWITCHYARD_DEVICE static void sum_many(const TokenRows& rows, int first_column, int stride, Finish finish) {
    for (int column = first_column; column < rows.hidden; column += stride) {
      float sums[kColumnsPerThread] = {};
      add_rows<kMaxLoads>(sums, rows.sources, column);
      constexpr int kNext = kEpKernelSizes.next_rows_in_flight;
      int first = kMaxLoads;
      for (; first + kNext <= rows.num_sources; first += kNext)
        add_rows<kNext>(sums, rows.sources + first, column);
      for (; first < rows.num_sources; ++first) add_rows<1>(sums, rows.sources + first, column);
      finish(column, sums);
    }
  }

  // All loads are in flight before the first is used.
  template <int kNumRows>
  SWITCHYARD_DEVICE static void add_rows(float (&sums)[kColumnsPerThread], const TokenSource* sources,
                                         int column) {
    Vec16 loaded[kNumRows];
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumRows; ++i) loaded[i] = BF16CombineRows::load(sources[i].row, column);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumRows; ++i) accumulate(sums, loaded[i], sources[i].weight);
  }
};

template <>
class RowSum<FP8CombineRows> {
  using Rows = FP8CombineRows;
  // What a warp adds at a time: sixteen columns per lane, of up to kRows rows. While its copies are in
  // flight, other warps add.
  struct alignas(kRowSumAlignment) Stage {
    static constexpr int kRows = kEpKernelSizes.fp8_rows_in_flight;
    static constexpr int kColumns = kWarpSize * Rows::kColumns;
    static constexpr int kGroups = kColumns / Rows::kGroupSize;
    static_assert(kRows * kGroups <= kWarpSize);

    std::byte codes[kRows][kColumns];
    alignas(16) float scales[kRows][kGroups];
    target::TransferBarrier filled;
  };

 public:
  static constexpr uint64_t kBytesPerWarp = sizeof(Stage);

  SWITCHYARD_DEVICE explicit RowSum(std::byte* stages)
      : stage_(reinterpret_cast<Stage*>(stages)[target::warp_idx()]) {
    if (target::lane_idx() == 0) stage_.filled.init(Stage::kRows);
    target::fence_proxy_async();  // bulk copies read what ordinary loads have acquired
    target::sync_warp();
  }

  template <typename Finish>
  SWITCHYARD_DEVICE void run(const TokenRows& rows, int worker_idx, int num_workers, Finish finish) {
    run_whole(rows, worker_idx, num_workers, [&](int column, float(&sums)[2][kColumnsPerThread]) {
      exchange_parts(sums);
      finish_parts(sums, column - target::lane_idx() * Rows::kColumns, rows.hidden, finish);
    });
  }

  // Calls finish(column, sums) for sixteen columns of each lane, by whole warps: `column` may be beyond the
  // last, and the sums mean nothing then.
  template <typename Finish>
  SWITCHYARD_DEVICE void run_whole(const TokenRows& rows, int worker_idx, int num_workers, Finish finish) {
    const int stride = num_workers * Rows::kColumns;
    int column = (worker_idx - target::lane_idx()) * Rows::kColumns;
    if (column < rows.hidden) fill(rows, 0, column);
    for (; column < rows.hidden; column += stride) {
      float sums[2][kColumnsPerThread] = {};
      int first_row = 0;
      do {
        add_stage(sums, rows, first_row);
        // All lanes have read the stage, by ordinary loads, before bulk copies overwrite it.
        target::fence_proxy_async_shared();
        target::sync_warp();
        first_row += Stage::kRows;
        if (first_row < rows.num_sources)
          fill(rows, first_row, column);
        else if (column + stride < rows.hidden)
          fill(rows, 0, column + stride);
      } while (first_row < rows.num_sources);
      finish(column + target::lane_idx() * Rows::kColumns, sums);
    }
  }

 private:
  // Lane i starts the copies of row first_row + i: its codes, and the scales of their scale groups.
  SWITCHYARD_DEVICE void fill(const TokenRows& rows, int first_row, int column) {
    const int lane_idx = target::lane_idx();
    if (lane_idx >= Stage::kRows) return;
    if (first_row + lane_idx >= rows.num_sources) return stage_.filled.arrive();
    const std::byte* row = rows.sources[first_row + lane_idx].row;
    const int num_columns = rows.hidden - column < Stage::kColumns ? rows.hidden - column : Stage::kColumns;
    constexpr uint32_t kScalesBytes = sizeof(stage_.scales[0]);
    stage_.filled.arrive_expect(static_cast<uint32_t>(num_columns) + kScalesBytes);
    target::bulk_load(stage_.codes[lane_idx], row + column, static_cast<uint32_t>(num_columns),
                      stage_.filled);
    target::bulk_load(stage_.scales[lane_idx], Rows::scales(row, rows.hidden) + column / Rows::kGroupSize,
                      kScalesBytes, stage_.filled);
  }

  // A lane has the factor of one row and one of the scale groups that the warp works on.
  SWITCHYARD_DEVICE void add_stage(float (&sums)[2][kColumnsPerThread], const TokenRows& rows,
                                   int first_row) {
    constexpr int kLanesPerGroup = kWarpSize / Stage::kGroups;
    const int num_rows = rows.num_sources - first_row;
    const int i_of_lane = target::lane_idx() / Stage::kGroups;
    const float weight = i_of_lane < num_rows ? rows.sources[first_row + i_of_lane].weight : 0.0f;
    const uint32_t parity = num_stages_added_++ % 2;
    target::wait_until([&] { return stage_.filled.done(parity); }, kNoDeadline);
    const float scale = i_of_lane < num_rows
                            ? target::ld(&stage_.scales[i_of_lane][target::lane_idx() % Stage::kGroups])
                            : 0.0f;
    const float factor = Rows::cut(weight * scale);
    SWITCHYARD_UNROLL
    for (int i = 0; i < Stage::kRows; ++i) {
      if (i >= num_rows) break;
      const Vec16 codes = target::ld_16(stage_.codes[i] + target::lane_idx() * Rows::kColumns);
      Rows::add(sums, codes,
                target::shuffle(factor, i * Stage::kGroups + target::lane_idx() / kLanesPerGroup));
    }
  }

  // A lane's 16-byte store would fill half of a 32-byte sector. So it exchanges parts with the lane that is
  // kExchangeLanes away: eight lanes then store whole lines together.
  static constexpr int kExchangeLanes = 4;
  SWITCHYARD_DEVICE static bool is_upper() { return (target::lane_idx() & kExchangeLanes) != 0; }
  SWITCHYARD_DEVICE static void exchange_parts(float (&sums)[2][kColumnsPerThread]) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumnsPerThread; ++i) {
      const float received = target::shuffle_xor(is_upper() ? sums[0][i] : sums[1][i], kExchangeLanes);
      sums[0][i] = is_upper() ? received : sums[0][i];
      sums[1][i] = is_upper() ? sums[1][i] : received;
    }
  }
  template <typename Finish>
  SWITCHYARD_DEVICE static void finish_parts(float (&sums)[2][kColumnsPerThread], int warp_column, int hidden,
                                             Finish finish) {
    const int lower_lane = target::lane_idx() & ~kExchangeLanes;
    const int column = warp_column + lower_lane * Rows::kColumns + (is_upper() ? kColumnsPerThread : 0);
    if (column >= hidden) return;
    finish(column, sums[0]);
    finish(column + kExchangeLanes * Rows::kColumns, sums[1]);
  }

  Stage& stage_;
  uint32_t num_stages_added_ = 0;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
