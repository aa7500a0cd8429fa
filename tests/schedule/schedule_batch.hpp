// Batches of sequences, and blocks that ask a tile scheduler about them: what the tests of schedules share.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "switchyard/detail/schedule/one_thread.hpp"
#include "switchyard/detail/schedule/schedulers.hpp"
#include "switchyard/detail/schedule/tile_plan.hpp"

namespace switchyard::testing_support {

using enum MHASchedule;
using Sync = MHASchedulerSynchronization;
using Tile = std::array<uint32_t, 3>;  // {sequence, head, tile}

// How a batch is told to a scheduler.
enum class Told { kCommonLength, kRowOffsets, kPlan };
constexpr Told kAllTold[] = {Told::kCommonLength, Told::kRowOffsets, Told::kPlan};

struct Batch {
  std::vector<uint32_t> lengths;
  MHATileShape shape;
  uint32_t spare_tiles = 0;  // max_num_prompt_tiles may be more than any sequence has

  uint32_t size() const { return static_cast<uint32_t>(lengths.size()); }
  uint32_t max_len() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  uint32_t num_tiles(uint32_t length) const { return (length + shape.tile_shape - 1) / shape.tile_shape; }
  uint32_t max_tiles() const { return num_tiles(max_len()) + spare_tiles; }
  bool has_common_length() const {
    return std::all_of(lengths.begin(), lengths.end(), [&](uint32_t length) { return length == lengths[0]; });
  }
  std::string describe() const {
    std::string text = "lengths";
    for (const uint32_t length : lengths) text.append(" ").append(std::to_string(length));
    return text + "; tiles of " + std::to_string(shape.tile_shape) + ", " + std::to_string(shape.num_heads) +
           " heads, " + std::to_string(shape.num_ctas) + " blocks, " + std::to_string(shape.kv_rows_in_l2) +
           " K/V rows in L2, " + std::to_string(shape.heads_per_kv_head) + " heads per K/V head, " +
           std::to_string(spare_tiles) + " spare";
  }
};

// The memory that a summary points to.
template <MHASchedule kSchedule>
class Lengths {
 public:
  explicit Lengths(const Batch& batch)
      : batch_(batch), row_offsets_(1), order_(batch.size(), 77), tile_offsets_(batch.size() + 1, 0) {
    for (const uint32_t length : batch.lengths) row_offsets_.push_back(row_offsets_.back() + length);
    for (uint32_t i = batch.size(); i > 0; --i)  // in any order
      plan_sequence<kSchedule>(row_offsets_.data(), batch.size(), batch.shape.tile_shape, i - 1, plan());
  }
  MHATileSummary<CommonLength> common() const {
    return {batch_.size(), batch_.max_tiles(), {}, batch_.max_len()};
  }
  MHATileSummary<RowOffsets> ragged() const {
    return {batch_.size(), batch_.max_tiles(), {row_offsets_.data()}, batch_.max_len()};
  }
  MHATileSummary<RowOffsets> planned() {
    MHATileSummary<RowOffsets> summary = ragged();
    summary.plan = plan();
    return summary;
  }

 private:
  MHATilePlan plan() { return {order_.data(), tile_offsets_.data()}; }

  const Batch& batch_;
  std::vector<uint32_t> row_offsets_, order_, tile_offsets_;
};

using BlockTiles = std::vector<std::vector<SeqInfo>>;  // by block

// One block, from its first tile on.
template <typename Scheduler, typename Lengths>
class Block {
 public:
  Block(const Scheduler& scheduler, const MHATileSummary<Lengths>& summary)
      : scheduler_(scheduler), summary_(summary), state_(scheduler.initial_state(slots_->data(), summary)) {
    if (scheduler_.get_current_work_info(summary_, state_).is_valid_tile)
      tiles_.push_back(scheduler_.unsafe_seq_info(summary_, state_));
  }
  bool is_done() const { return !state_.is_valid(); }
  void step() {
    const OptionalReg<SeqInfo> next =
        scheduler_.template advance<true, Sync::NONE>(summary_, state_, pipeline_idx_ ^= 1);
    EXPECT_EQ(next.has_value(), state_.is_valid());
    if (!next) return;
    EXPECT_EQ(*next, scheduler_.unsafe_seq_info(summary_, state_));
    EXPECT_TRUE(scheduler_.get_current_work_info(summary_, state_).is_valid_tile);
    EXPECT_EQ((*slots_)[pipeline_idx_], Scheduler::may_advance && has_queue() ? state_.idx : 0u);
    tiles_.push_back(*next);
  }
  void finish() {
    while (!is_done()) step();
    EXPECT_FALSE(scheduler_.get_current_work_info(summary_, state_).is_valid_tile);
    EXPECT_FALSE((scheduler_.template advance<true>(summary_, state_, 0))) << "an ended block stays ended";
    EXPECT_FALSE((scheduler_.template advance<false>(summary_, state_, 1)));
  }
  const std::vector<SeqInfo>& tiles() const { return tiles_; }

 private:
  static constexpr bool has_queue() {
    return requires(const Scheduler& scheduler) { scheduler.gidx_ptr; };
  }

  Scheduler scheduler_;
  MHATileSummary<Lengths> summary_;
  std::shared_ptr<std::array<uint32_t, 2>> slots_ = std::make_shared<std::array<uint32_t, 2>>();
  MHATileState state_;
  uint32_t pipeline_idx_ = 0;
  std::vector<SeqInfo> tiles_;
};

// All blocks of a grid; a random one of them goes on.
template <typename MakeScheduler, typename Lengths>
BlockTiles run_blocks(const MakeScheduler& make, const MHATileSummary<Lengths>& summary,
                      std::mt19937& random) {
  using Scheduler = decltype(make(OneThread{}));
  const GridDim grid =
      Scheduler::grid_dim(summary.batch_size, summary.max_num_prompt_tiles, make(OneThread{}).shape());
  std::vector<Block<Scheduler, Lengths>> blocks;
  std::vector<size_t> running;
  for (uint32_t idx = 0; idx < grid.num_blocks(); ++idx) {
    running.push_back(idx);
    blocks.emplace_back(make(OneThread{idx}), summary);
  }
  while (!running.empty()) {
    size_t& next = running[random() % running.size()];
    if (!blocks[next].is_done()) {
      blocks[next].step();
      continue;
    }
    std::swap(next, running.back());
    running.pop_back();
  }
  BlockTiles tiles;
  for (auto& block : blocks) {
    block.finish();
    tiles.push_back(block.tiles());
  }
  return tiles;
}

inline std::vector<Tile> tiles_of(const Batch& batch, const std::vector<SeqInfo>& infos) {
  std::vector<Tile> tiles;
  for (const SeqInfo& info : infos)
    tiles.push_back({info.prompt_idx, info.head_idx, info.prompt_offset / batch.shape.tile_shape});
  return tiles;
}

// Calls check(summary) as the batch is told.
template <MHASchedule kSchedule, typename Check>
void with_summary(const Batch& batch, Told told, const Check& check) {
  Lengths<kSchedule> lengths(batch);
  if (told == Told::kCommonLength)
    check(lengths.common());
  else
    check(told == Told::kPlan ? lengths.planned() : lengths.ragged());
}

}  // namespace switchyard::testing_support
