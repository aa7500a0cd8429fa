#include "measured_schedule.hpp"

#include <algorithm>
#include <numeric>

#include "reference/attention_case.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/base/checked.hpp"

namespace switchyard::tools {
namespace {

using reference::AttentionCase;
using reference::AttentionHarness;

AttentionCase case_of(const AttentionWorkload& workload, const TwinResult& twin) {
  return {.query_lens = {workload.seq_lens.begin(), workload.seq_lens.end()},
          .num_heads = static_cast<int>(workload.num_heads),
          .num_kv_heads = static_cast<int>(workload.num_kv_heads),
          .head_dim = static_cast<int>(workload.head_dim),
          .causal = workload.is_causal,
          .is_dense = !workload.is_ragged,
          .scheduler = twin.kind,
          .order = twin.schedule,
          .num_blocks = static_cast<int>(workload.num_ctas)};
}

// Blocks of one tile each are more than run at a time: each is put where one before it has ended.
void assign_transient_blocks(std::vector<TwinTile>& tiles) {
  std::vector<double> free_at;
  for (TwinTile& tile : tiles) {
    const auto lane =
        std::find_if(free_at.begin(), free_at.end(), [&](double end) { return end <= tile.begin; });
    tile.block = static_cast<uint32_t>(lane - free_at.begin());
    if (lane == free_at.end())
      free_at.push_back(tile.end);
    else
      *lane = tile.end;
  }
}

}  // namespace

Status fit_to_kernel(AttentionWorkload& workload) {
  if (workload.head_dim != 64 && workload.head_dim != 128 && workload.head_dim != 256)
    return invalid_argument("--measure: --head-dim %u must be 64, 128 or 256", workload.head_dim);
  const int head_dim = static_cast<int>(workload.head_dim);
  const AttentionKind kind =
      kind_of_attention(head_dim, workload.max_seq_len(), workload.max_seq_len(), workload.is_causal);
  if (kind == AttentionKind::kDecode)
    return invalid_argument("--measure: sequences of at most %d rows are decoded, in tiles of another kind",
                            kAttentionLimits.max_decode_tokens);
  const AttentionTuning tuning =
      attention_tuning(head_dim, kind, choose_candidate(head_dim, kind, workload.max_seq_len()));
  workload.tile_m = static_cast<uint32_t>(tuning.tile_rows());
  workload.tile_n = static_cast<uint32_t>(tuning.tile_keys);
  return workload.check();
}

Result<MeasuredSchedule> measure_schedule(World& world, const AttentionWorkload& workload,
                                          const TwinResult& twin) {
  Rank& rank = world.rank(0);
  Result<std::unique_ptr<AttentionHarness>> created = AttentionHarness::create(rank, case_of(workload, twin));
  if (!created.ok()) return created.status();
  AttentionHarness& harness = *created.value();
  const Result<Buffer<uint64_t>> times = rank.allocate<uint64_t>(3 * harness.attention().num_tile_times());
  if (!times.ok()) return times.status();
  AttentionTensors tensors = harness.tensors();
  tensors.tile_times = times.value().data();
  for (int i = 0; i < 2; ++i)
    SWITCHYARD_RETURN_IF_ERROR(harness.attention().run(tensors));  // the second run is the one that counts
  const Result<std::vector<uint64_t>> measured = times.value().download();
  if (!measured.ok()) return measured.status();

  MeasuredSchedule schedule{.result = {.kind = twin.kind, .schedule = twin.schedule}};
  TwinResult& result = schedule.result;
  result.type_name = twin.type_name + ", measured";
  const uint32_t max_tiles = ceil_div(workload.max_seq_len(), workload.tile_m);
  uint64_t first_ns = UINT64_MAX;
  for (size_t grid_idx = 0; grid_idx * 3 < measured.value().size(); ++grid_idx)
    if (measured.value()[grid_idx * 3] != 0) first_ns = std::min(first_ns, measured.value()[grid_idx * 3]);
  double total_us = 0;
  for (size_t grid_idx = 0; grid_idx * 3 < measured.value().size(); ++grid_idx) {
    const uint64_t* of_tile = &measured.value()[grid_idx * 3];
    if (of_tile[0] == 0) continue;  // no such tile
    const uint32_t pair = static_cast<uint32_t>(grid_idx) / max_tiles;
    result.tiles.push_back({static_cast<uint32_t>(of_tile[2]), pair / workload.num_heads,
                            pair % workload.num_heads, static_cast<uint32_t>(grid_idx) % max_tiles,
                            static_cast<double>(of_tile[0] - first_ns) * 1e-3,
                            static_cast<double>(of_tile[1] - first_ns) * 1e-3});
    total_us += result.tiles.back().end - result.tiles.back().begin;
  }
  std::sort(result.tiles.begin(), result.tiles.end(),
            [](const TwinTile& a, const TwinTile& b) { return a.begin < b.begin; });
  if (twin.kind == TileSchedulerKind::kTransient) assign_transient_blocks(result.tiles);
  schedule.microseconds_per_unit = twin.total_cost > 0 && total_us > 0 ? total_us / twin.total_cost : 1;
  uint32_t num_blocks = workload.num_ctas;
  for (const TwinTile& tile : result.tiles) num_blocks = std::max(num_blocks, tile.block + 1);
  result.tiles_per_block.resize(num_blocks);
  result.busy_per_block.resize(num_blocks);
  for (TwinTile& tile : result.tiles) {
    tile.begin /= schedule.microseconds_per_unit;
    tile.end /= schedule.microseconds_per_unit;
    ++result.tiles_per_block[tile.block];
    result.busy_per_block[tile.block] += tile.end - tile.begin;
    result.total_cost += tile.end - tile.begin;
    result.longest_tile = std::max(result.longest_tile, tile.end - tile.begin);
    result.makespan = std::max(result.makespan, tile.end);
  }
  result.is_verified = result.tiles.size() == twin.tiles.size();
  return schedule;
}

}  // namespace switchyard::tools
