#include "tile_twin.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <queue>
#include <utility>

#include "switchyard/detail/schedule/check.hpp"
#include "switchyard/detail/schedule/one_thread.hpp"
#include "switchyard/detail/schedule/schedulers.hpp"
#include "switchyard/detail/schedule/tile_plan.hpp"

namespace switchyard::tools {
namespace {

constexpr uint64_t kMaxTiles = 2'000'000;

// The tiles that one multiprocessor works on, one after the other: those of a persistent block, or of the
// blocks that start there when others have ended.
template <typename Scheduler, typename Lengths>
class Lane {
 public:
  Lane(uint32_t lane_idx, const MHATileShape& shape, const MHATileSummary<Lengths>& summary, uint32_t* queue)
      : shape_(shape), summary_(summary), queue_(queue) {
    if (Scheduler::may_advance) begin_block(lane_idx);
  }

  // `next_block` is the first block of the grid that has not started.
  OptionalReg<SeqInfo> next(uint32_t& next_block, uint32_t num_blocks) {
    if constexpr (!Scheduler::may_advance) {
      while (next_block < num_blocks) {
        begin_block(next_block++);
        if (const auto first = first_tile()) return first;
      }
      return {};
    } else {
      const Scheduler scheduler = make_scheduler<Scheduler>(queue_, shape_, OneThread{block_idx_});
      if (!std::exchange(has_begun_, true))
        if (const auto first = first_tile()) return first;
      return scheduler.template advance<true, MHASchedulerSynchronization::NONE>(summary_, state_,
                                                                                 pipeline_idx_ ^= 1);
    }
  }

 private:
  void begin_block(uint32_t block_idx) {
    block_idx_ = block_idx;
    state_ = make_scheduler<Scheduler>(queue_, shape_, OneThread{block_idx})
                 .initial_state(slots_->data(), summary_);
  }
  OptionalReg<SeqInfo> first_tile() const {
    const Scheduler scheduler = make_scheduler<Scheduler>(queue_, shape_, OneThread{block_idx_});
    if (!scheduler.get_current_work_info(summary_, state_).is_valid_tile) return {};
    return scheduler.unsafe_seq_info(summary_, state_);
  }

  MHATileShape shape_;
  MHATileSummary<Lengths> summary_;
  uint32_t* queue_;
  uint32_t block_idx_ = 0;
  std::unique_ptr<std::array<uint32_t, 2>> slots_ = std::make_unique<std::array<uint32_t, 2>>();
  MHATileState state_;
  uint32_t pipeline_idx_ = 0;
  bool has_begun_ = false;
};

bool each_tile_once(const AttentionWorkload& workload, const std::vector<TwinTile>& tiles) {
  std::vector<uint64_t> first_tile = {0};
  for (const uint32_t seq_len : workload.seq_lens)
    first_tile.push_back(first_tile.back() +
                         uint64_t{workload.num_heads} * ceil_div(seq_len, workload.tile_m));
  std::vector<bool> is_seen(first_tile.back());
  for (const TwinTile& tile : tiles) {
    if (tile.sequence >= workload.seq_lens.size() || tile.head >= workload.num_heads) return false;
    const uint32_t num_tiles = ceil_div(workload.seq_lens[tile.sequence], workload.tile_m);
    if (tile.tile >= num_tiles) return false;
    const uint64_t i = first_tile[tile.sequence] + uint64_t{tile.head} * num_tiles + tile.tile;
    if (is_seen[i]) return false;
    is_seen[i] = true;
  }
  return tiles.size() == is_seen.size();
}

// The lane that is free first takes the next tile; of several that are free at once, the one with the lowest
// index.
template <typename Scheduler, typename Lengths>
void simulate(const AttentionWorkload& workload, const MHATileSummary<Lengths>& summary, TwinResult& result) {
  const MHATileShape shape = workload.tile_shape();
  uint32_t queue = 0, next_block = 0;
  const uint32_t num_blocks =
      Scheduler::grid_dim(summary.batch_size, summary.max_num_prompt_tiles, shape).num_blocks();
  result.type_name = Scheduler::get_type_name();
  result.tiles_per_block.resize(workload.num_ctas);
  result.busy_per_block.resize(workload.num_ctas);
  std::vector<Lane<Scheduler, Lengths>> lanes;
  using Free = std::pair<double, uint32_t>;  // when, and which lane
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (uint32_t lane_idx = 0; lane_idx < std::min(workload.num_ctas, num_blocks); ++lane_idx) {
    lanes.emplace_back(lane_idx, shape, summary, &queue);
    free.emplace(0, lane_idx);
  }
  while (!free.empty()) {
    const auto [now, lane_idx] = free.top();
    free.pop();
    const OptionalReg<SeqInfo> info = lanes[lane_idx].next(next_block, num_blocks);
    if (!info) continue;
    const double cost = workload.cost(info->seq_len, info->prompt_offset);
    result.tiles.push_back(
        {lane_idx, info->prompt_idx, info->head_idx, info->prompt_offset / workload.tile_m, now, now + cost});
    ++result.tiles_per_block[lane_idx];
    result.busy_per_block[lane_idx] += cost;
    result.total_cost += cost;
    result.longest_tile = std::max(result.longest_tile, cost);
    result.makespan = std::max(result.makespan, now + cost);
    free.emplace(now + cost, lane_idx);
  }
  result.is_verified = queue == 0 && each_tile_once(workload, result.tiles);
}

template <MHASchedule kSchedule, typename Lengths>
void simulate_kind(const AttentionWorkload& workload, const MHATileSummary<Lengths>& summary,
                   TwinResult& result) {
  with_scheduler<kSchedule, OneThread>(
      result.kind, [&](auto type) { simulate<typename decltype(type)::type>(workload, summary, result); });
}

template <MHASchedule kSchedule>
void simulate_order(const AttentionWorkload& workload, TwinResult& result) {
  const uint32_t batch_size = static_cast<uint32_t>(workload.seq_lens.size());
  const uint32_t max_len = workload.max_seq_len(), max_tiles = ceil_div(max_len, workload.tile_m);
  if (!workload.is_ragged)
    return simulate_kind<kSchedule>(workload,
                                    MHATileSummary<CommonLength>{batch_size, max_tiles, {}, max_len}, result);
  std::vector<uint32_t> row_offsets = {0}, order(batch_size), tile_offsets(batch_size + 1);
  for (const uint32_t seq_len : workload.seq_lens) row_offsets.push_back(row_offsets.back() + seq_len);
  const MHATilePlan plan{order.data(), tile_offsets.data()};
  for (uint32_t i = 0; i < batch_size; ++i)
    plan_sequence<kSchedule>(row_offsets.data(), batch_size, workload.tile_m, i, plan);
  simulate_kind<kSchedule>(
      workload, MHATileSummary<RowOffsets>{batch_size, max_tiles, {row_offsets.data()}, max_len, plan},
      result);
}

}  // namespace

uint32_t AttentionWorkload::max_seq_len() const {
  return seq_lens.empty() ? 0 : *std::max_element(seq_lens.begin(), seq_lens.end());
}

uint64_t AttentionWorkload::num_tiles() const {
  uint64_t count = 0;
  for (const uint32_t seq_len : seq_lens) count += ceil_div(uint64_t{seq_len}, uint64_t{tile_m});
  return count * num_heads;
}

MHATileShape AttentionWorkload::tile_shape() const {
  const uint64_t kv_row_bytes = 2 * 2 * uint64_t{head_dim};  // a key and a value of bf16
  return {tile_m, num_heads, num_ctas,
          static_cast<uint32_t>(std::clamp<uint64_t>(l2_bytes / kv_row_bytes, 1, UINT32_MAX)),
          num_heads / num_kv_heads};
}

Status AttentionWorkload::check() const {
  if (num_heads % num_kv_heads != 0)
    return invalid_argument("--kv-heads: %u must divide --heads (%u)", num_kv_heads, num_heads);
  if (num_tiles() > kMaxTiles)
    return invalid_argument(
        "--seq, --seq-lens, --batch, --heads, --tile-m: %llu tiles; at most %llu can be drawn up",
        static_cast<unsigned long long>(num_tiles()), static_cast<unsigned long long>(kMaxTiles));
  uint64_t num_rows = 0;
  for (const uint32_t seq_len : seq_lens) num_rows += seq_len;
  const Status counts = check_tile_counts(tile_shape(), seq_lens.size(), max_seq_len(), num_rows);
  return counts.ok() ? counts : invalid_argument("--seq, --seq-lens: %s", counts.message().c_str());
}

double AttentionWorkload::cost(uint32_t seq_len, uint32_t prompt_offset) const {
  const uint32_t num_keys = is_causal ? std::min(seq_len, prompt_offset + tile_m) : seq_len;
  return ceil_div(num_keys, tile_n) + tile_overhead;
}

std::string AttentionWorkload::describe_batch() const {
  std::string text =
      std::to_string(seq_lens.size()) + (seq_lens.size() == 1 ? " sequence of " : " sequences of ");
  const uint32_t shortest = seq_lens.empty() ? 0 : *std::min_element(seq_lens.begin(), seq_lens.end());
  if (shortest != max_seq_len()) text += std::to_string(shortest) + " to ";
  text += std::to_string(max_seq_len()) + ", " + std::to_string(num_heads) + " heads";
  if (num_kv_heads != num_heads) text += " on " + std::to_string(num_kv_heads) + " K/V heads";
  return text + " of " + std::to_string(head_dim) + (is_causal ? ", causal" : ", full");
}

std::string AttentionWorkload::describe_tiles() const {
  char text[160];
  std::snprintf(text, sizeof(text),
                "%llu tiles of %u rows for %u blocks; a tile costs the K/V tiles of %u it visits + %g",
                static_cast<unsigned long long>(num_tiles()), tile_m, num_ctas, tile_n, tile_overhead);
  return text;
}

TwinResult run_twin(const AttentionWorkload& workload, TileSchedulerKind kind, MHASchedule schedule) {
  TwinResult result{kind, schedule};
  with_order(schedule, [&](auto order) { simulate_order<order.value>(workload, result); });
  return result;
}

}  // namespace switchyard::tools
