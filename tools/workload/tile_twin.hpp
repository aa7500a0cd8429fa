// Runs a tile scheduler on the host for a workload of attention, with a model of the cost of a tile instead
// of the attention: it predicts what a launch would look like if cost were time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/status.hpp"
#include "switchyard/types/tile_types.hpp"

namespace switchyard::tools {

struct AttentionWorkload {
  std::vector<uint32_t> seq_lens;
  bool is_ragged = false;  // given by row offsets and a plan, not by one common length
  bool is_causal = false;
  uint32_t num_heads = 16;
  uint32_t num_kv_heads = 16;
  uint32_t head_dim = 128;
  uint32_t tile_m = 128;     // query rows of a tile
  uint32_t tile_n = 128;     // K/V rows that are one unit of cost
  double tile_overhead = 1;  // the cost of a tile beyond the K/V tiles that it visits
  uint32_t num_ctas = 132;   // blocks at a time
  uint64_t l2_bytes = 50 << 20;

  Status check() const;
  uint32_t max_seq_len() const;
  uint64_t num_tiles() const;
  MHATileShape tile_shape() const;
  double cost(uint32_t seq_len, uint32_t prompt_offset) const;
  // "4 sequences of 4096, 16 heads, ..", in two lines.
  std::string describe_batch() const;
  std::string describe_tiles() const;
};

struct TwinTile {
  uint32_t block;  // of those that run at a time
  uint32_t sequence;
  uint32_t head;
  uint32_t tile;
  double begin;
  double end;
};

struct TwinResult {
  TileSchedulerKind kind;
  MHASchedule schedule;
  std::string type_name;
  std::vector<TwinTile> tiles;  // in the order in which they began
  std::vector<uint32_t> tiles_per_block;
  std::vector<double> busy_per_block;
  double total_cost = 0;
  double longest_tile = 0;
  double makespan = 0;
  bool is_verified = false;  // every tile came once, and the queue is back at 0

  double efficiency() const {
    return makespan > 0 ? total_cost / (static_cast<double>(tiles_per_block.size()) * makespan) : 1;
  }
  // No schedule ends before this.
  double bound() const {
    const double even_share = total_cost / static_cast<double>(tiles_per_block.size());
    return even_share > longest_tile ? even_share : longest_tile;
  }
};

TwinResult run_twin(const AttentionWorkload& workload, TileSchedulerKind kind, MHASchedule schedule);

// Gantt charts: one large, or several small that share their time axis.
std::string to_svg(const AttentionWorkload& workload, const std::vector<TwinResult>& results);

}  // namespace switchyard::tools
