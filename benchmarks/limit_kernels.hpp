// The kernels of limits.hpp, over the vocabulary of target/.
#pragma once

#include "limits.hpp"
#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/ep/epilogue.hpp"

namespace switchyard::benchmarks::inline SWITCHYARD_TARGET {

// Every warp has two stages of its own, a row each: one is loaded while the other is stored.
struct alignas(128) ScatterShared {
  static constexpr int kMaxWarps = 8;
  static constexpr int kNumStages = 2;

  target::TransferBarrier loaded[kMaxWarps][kNumStages];
  // Behind it: [warp][stage] rows.

  static constexpr uint64_t bytes(int num_warps, uint64_t row_bytes) {
    return sizeof(ScatterShared) + static_cast<uint64_t>(num_warps) * kNumStages * row_bytes;
  }
  SWITCHYARD_DEVICE std::byte* stage(int warp_idx, int stage_idx, uint64_t row_bytes) {
    return reinterpret_cast<std::byte*>(this + 1) +
           static_cast<uint64_t>(warp_idx * kNumStages + stage_idx) * row_bytes;
  }
};

struct Scatter {
  const ScatterParams& params;
  uint32_t row_bytes = static_cast<uint32_t>(params.hidden) * static_cast<uint32_t>(sizeof(bf16));
  ScatterShared& shared = target::shared_storage<ScatterShared>();
  int warp_idx = target::warp_idx();

  SWITCHYARD_DEVICE explicit Scatter(const ScatterParams& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (target::lane_idx() == 0)
      for (int stage_idx = 0; stage_idx < ScatterShared::kNumStages; ++stage_idx)
        shared.loaded[warp_idx][stage_idx].init(1);
    target::sync_block();
    // Neighbouring rows go to different blocks, so that even a few rows are spread over all multiprocessors.
    const uint32_t num_warps = static_cast<uint32_t>(target::num_warps() * target::num_blocks());
    uint32_t row = static_cast<uint32_t>(warp_idx * target::num_blocks() + target::block_idx());
    if (row < params.num_rows) load(row, 0);
    uint32_t row_idx = row_address(row);
    for (uint32_t turn = 0; row < params.num_rows; ++turn, row += num_warps) {
      const int stage_idx = static_cast<int>(turn % 2);
      const uint32_t next_row_idx = row_address(row + num_warps);
      if (row + num_warps < params.num_rows) {
        // The stores out of the other stage, one turn ago, have read it.
        target::bulk_wait_read<0>();
        target::sync_warp();
        load(row + num_warps, 1 - stage_idx);
      }
      target::wait_until([&] { return shared.loaded[warp_idx][stage_idx].done(turn / 2 % 2); }, kNoDeadline);
      store(row_idx, stage_idx);
      row_idx = next_row_idx;
    }
    target::bulk_wait<0>();
  }

  // Lane k knows where copy k of the row goes.
  SWITCHYARD_DEVICE uint32_t row_address(uint32_t row) const {
    if (row >= params.num_rows || target::lane_idx() >= params.top_k) return 0;
    return target::ld(&params.row_indices[uint64_t{row} * static_cast<uint32_t>(params.top_k) +
                                          static_cast<uint32_t>(target::lane_idx())]);
  }

  SWITCHYARD_DEVICE void load(uint32_t row, int stage_idx) {
    if (target::lane_idx() != 0) return;
    target::TransferBarrier& loaded = shared.loaded[warp_idx][stage_idx];
    loaded.arrive_expect(row_bytes);
    target::bulk_load(shared.stage(warp_idx, stage_idx, row_bytes),
                      params.rows + uint64_t{row} * static_cast<uint32_t>(params.hidden), row_bytes, loaded);
  }

  SWITCHYARD_DEVICE void store(uint32_t row_idx, int stage_idx) {
    if (target::lane_idx() < params.top_k)
      target::bulk_store(params.output + uint64_t{row_idx} * static_cast<uint32_t>(params.hidden),
                         shared.stage(warp_idx, stage_idx, row_bytes), row_bytes);
    target::bulk_commit();
  }
};

SWITCHYARD_KERNEL void scatter_kernel(ScatterParams params) { Scatter(params).run(); }

struct Gather {
  const GatherParams& params;
  uint32_t chunks_per_row = static_cast<uint32_t>(params.hidden / kColumnsPerThread);

  SWITCHYARD_DEVICE explicit Gather(const GatherParams& params_in) : params(params_in) {}

  // There is a warp per row; if there are more warps than rows, several warps share one.
  SWITCHYARD_DEVICE void run() {
    const uint32_t num_warps = static_cast<uint32_t>(target::num_warps() * target::num_blocks());
    const uint32_t warp =
        static_cast<uint32_t>(target::warp_idx() * target::num_blocks() + target::block_idx());
    const uint32_t most_warps_per_row = ceil_div<uint32_t>(chunks_per_row, kWarpSize);
    uint32_t warps_per_row = num_warps / params.num_rows;
    if (warps_per_row < 1) warps_per_row = 1;
    if (warps_per_row > most_warps_per_row) warps_per_row = most_warps_per_row;
    // At most num_warps or num_rows of them, whichever is more.
    for (uint32_t unit = warp; unit < params.num_rows * warps_per_row; unit += num_warps)
      sum_row(unit % params.num_rows, unit / params.num_rows, warps_per_row);
  }

  SWITCHYARD_DEVICE void sum_row(uint32_t row, uint32_t part, uint32_t num_parts) {
    // Lane k knows row k of the sum, and its weight.
    const int k = target::lane_idx() < params.top_k ? target::lane_idx() : 0;
    const uint64_t term = uint64_t{row} * static_cast<uint32_t>(params.top_k) + static_cast<uint32_t>(k);
    const uint32_t row_idx = target::ld(&params.row_indices[term]);
    const float weight = target::ld(&params.weights[term]);
    for (uint32_t first_chunk = part * kWarpSize; first_chunk < chunks_per_row;
         first_chunk += num_parts * kWarpSize)
      sum_chunk(row, first_chunk + static_cast<uint32_t>(target::lane_idx()), row_idx, weight);
  }

  // Called by a whole warp, each lane with a chunk of its own; lanes past the end load the last chunk and
  // store nothing.
  SWITCHYARD_DEVICE void sum_chunk(uint32_t row, uint32_t chunk, uint32_t row_idx, float weight) {
    const uint32_t chunk_read = chunk < chunks_per_row ? chunk : chunks_per_row - 1;
    const bf16* column = params.rows + chunk_read * kColumnsPerThread;
    float sums[kColumnsPerThread] = {};
    int k = 0;
    for (; k + 8 <= params.top_k; k += 8) add_rows<8>(sums, column, k, row_idx, weight);
    if (k + 4 <= params.top_k) {
      add_rows<4>(sums, column, k, row_idx, weight);
      k += 4;
    }
    for (; k < params.top_k; ++k) add_rows<1>(sums, column, k, row_idx, weight);
    if (chunk < chunks_per_row)
      StoreWeighted{params.output, params.hidden}(static_cast<int>(row),
                                                  static_cast<int>(chunk) * kColumnsPerThread, sums);
  }

  // All loads are in flight before the first is used.
  template <int kNumRows>
  SWITCHYARD_DEVICE void add_rows(float (&sums)[kColumnsPerThread], const bf16* column, int first_k,
                                  uint32_t row_idx, float weight) {
    Vec16 loaded[kNumRows];
    for (int i = 0; i < kNumRows; ++i)
      loaded[i] = target::ld_16(column + uint64_t{target::shuffle(row_idx, first_k + i)} *
                                             static_cast<uint32_t>(params.hidden));
    for (int i = 0; i < kNumRows; ++i) accumulate(sums, loaded[i], target::shuffle(weight, first_k + i));
  }
};

SWITCHYARD_KERNEL void gather_kernel(GatherParams params) { Gather(params).run(); }

SWITCHYARD_KERNEL void sweep_kernel(SweepParams params) {
  const uint64_t num_threads = static_cast<uint64_t>(target::num_blocks()) * target::num_threads();
  Vec16* units = static_cast<Vec16*>(params.memory);
  for (uint64_t i = static_cast<uint64_t>(target::block_idx()) * target::num_threads() + target::thread_idx();
       i < params.num_bytes / sizeof(Vec16); i += num_threads) {
    Vec16 unit = target::ld_16(units + i);
    ++unit.words[0];
    target::st_16(units + i, unit);
  }
}

struct alignas(128) ReadShared {
  static constexpr uint32_t kNumStages = 6, kStageBytes = 32 << 10;

  std::byte stages[kNumStages][kStageBytes];
  target::TransferBarrier loaded[kNumStages];
};

// One thread of each block keeps as many bulk loads in flight as there are stages.
struct Read {
  const ReadParams& params;
  ReadShared& shared = target::shared_storage<ReadShared>();

  SWITCHYARD_DEVICE explicit Read(const ReadParams& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    constexpr uint32_t kNumStages = ReadShared::kNumStages;
    if (target::thread_idx() != 0) return;
    for (target::TransferBarrier& loaded : shared.loaded) loaded.init(1);
    const uint64_t num_chunks = ceil_div<uint64_t>(params.num_bytes, ReadShared::kStageBytes) * 2;
    uint32_t num_started = 0;
    for (uint64_t chunk = static_cast<uint64_t>(target::block_idx()); chunk < num_chunks;
         chunk += static_cast<uint64_t>(target::num_blocks()), ++num_started) {
      if (num_started >= kNumStages) wait(num_started - kNumStages);
      start(num_started % kNumStages, params.tensors[chunk % 2], chunk / 2 * ReadShared::kStageBytes);
    }
    for (uint32_t i = num_started < kNumStages ? 0 : num_started - kNumStages; i < num_started; ++i) wait(i);
  }

  SWITCHYARD_DEVICE void start(uint32_t stage_idx, const void* tensor, uint64_t first_byte) {
    const uint64_t num_left = params.num_bytes - first_byte;
    const uint32_t num_bytes =
        num_left < ReadShared::kStageBytes ? static_cast<uint32_t>(num_left) : ReadShared::kStageBytes;
    shared.loaded[stage_idx].arrive_expect(num_bytes);
    target::bulk_load(shared.stages[stage_idx], static_cast<const std::byte*>(tensor) + first_byte, num_bytes,
                      shared.loaded[stage_idx]);
  }
  SWITCHYARD_DEVICE void wait(uint32_t load_idx) {
    const uint32_t stage_idx = load_idx % ReadShared::kNumStages;
    const uint32_t parity = load_idx / ReadShared::kNumStages % 2;
    target::wait_until([&] { return shared.loaded[stage_idx].done(parity); }, kNoDeadline);
  }
};

SWITCHYARD_KERNEL void read_kernel(ReadParams params) {
  target::grid_dependency_wait();
  target::grid_dependency_launch();
  Read(params).run();
}

}  // namespace switchyard::benchmarks::inline SWITCHYARD_TARGET
