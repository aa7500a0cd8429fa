// The tile schedulers against plain loops: every tile that is there exactly once, none that is not, in the
// order that was asked for, whatever the shape and however the blocks come to the queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "switchyard/schedule/check.hpp"
#include "switchyard/schedule/one_thread.hpp"
#include "switchyard/schedule/schedulers.hpp"
#include "switchyard/schedule/tile_plan.hpp"

namespace switchyard {
namespace {

using enum MHASchedule;
using Sync = MHASchedulerSynchronization;

// A block whose visits to the queue have been laid down: its k-th is the places[k]-th of all blocks.
struct ReplayedThread : OneThread {
  const std::vector<uint32_t>* places = nullptr;
  uint32_t* num_visits = nullptr;
  uint32_t num_places = 0;  // as many visits as there will be, of all blocks

  uint32_t increment_wrapping(uint32_t*, uint32_t last) const {
    EXPECT_EQ(last + 1, num_places) << "the last visit does not wrap";
    EXPECT_LT(*num_visits, places->size()) << "block " << idx << " asks the queue once more";
    return *num_visits < places->size() ? (*places)[(*num_visits)++] : last;
  }
};

static_assert(TileEnvironment<ReplayedThread>);
static_assert(MHATileScheduler<TransientScheduler<DEFAULT, OneThread>>);
static_assert(MHATileScheduler<TileScheduler<PROMPT_ROTATE, OneThread>>);
static_assert(MHATileScheduler<QueuedTileScheduler<LPT, OneThread>>);
static_assert(MHATileScheduler<QueuedTileScheduler<DEFAULT, ReplayedThread>, CommonLength>);
static_assert(!MHATileScheduler<OneThread>);
static_assert(!TransientScheduler<DEFAULT, OneThread>::may_advance);
static_assert(TileScheduler<DEFAULT, OneThread>::may_advance &&
              QueuedTileScheduler<DEFAULT, OneThread>::may_advance);
static_assert(QueuedTileScheduler<LPT, OneThread>::mha_schedule == LPT);
static_assert(Sync::DEFAULT == Sync::PRODUCER);

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
  const GridDim grid = make(OneThread{}).grid_dim(summary.batch_size, summary.max_num_prompt_tiles);
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

// Every tile that is there, once, with what its sequence is; nothing else.
void expect_each_tile_once(const Batch& batch, const BlockTiles& blocks) {
  std::vector<std::vector<int>> num_seen;  // [sequence][head * tiles + tile]
  for (const uint32_t length : batch.lengths)
    num_seen.emplace_back(batch.shape.num_heads * batch.num_tiles(length));
  std::vector<uint32_t> starts = {0};
  for (const uint32_t length : batch.lengths) starts.push_back(starts.back() + length);
  for (const auto& tiles : blocks)
    for (const SeqInfo& info : tiles) {
      ASSERT_LT(info.prompt_idx, batch.size());
      const uint32_t length = batch.lengths[info.prompt_idx];
      ASSERT_LT(info.head_idx, batch.shape.num_heads);
      ASSERT_LT(info.prompt_offset, length) << "a tile that is not there";
      ASSERT_EQ(info.prompt_offset % batch.shape.tile_shape, 0u);
      ASSERT_EQ(info.seq_len, length);
      ASSERT_EQ(info.start_of_seq, starts[info.prompt_idx]);
      ++num_seen[info.prompt_idx]
                [info.head_idx * batch.num_tiles(length) + info.prompt_offset / batch.shape.tile_shape];
    }
  for (const auto& sequence : num_seen)
    for (const int count : sequence) ASSERT_EQ(count, 1);
}

using Tile = std::array<uint32_t, 3>;  // {sequence, head, tile}

// The other orders in plain loops.
std::vector<Tile> expected_order(const Batch& batch, MHASchedule schedule) {
  std::vector<Tile> order;
  for (uint32_t sequence = 0; sequence < batch.size(); ++sequence)
    for (uint32_t head = 0; head < batch.shape.num_heads; ++head) {
      const uint32_t num_tiles = batch.num_tiles(batch.lengths[sequence]);
      for (uint32_t i = 0; i < num_tiles; ++i)
        order.push_back({sequence, head, schedule == PROMPT_ROTATE && head % 2 == 1 ? num_tiles - 1 - i : i});
    }
  return order;
}

// What LPT divides into sections: the heads of all sequences, or those of each if there is a plan.
struct LptRun {
  std::vector<std::array<uint32_t, 2>> heads;  // {sequence, head}
  uint32_t num_keys, num_tiles;                // of the longest sequence
};
std::vector<LptRun> lpt_runs(const Batch& batch, Told told) {
  std::vector<uint32_t> sequences(batch.size());
  std::iota(sequences.begin(), sequences.end(), 0u);
  if (told == Told::kPlan)
    std::stable_sort(sequences.begin(), sequences.end(),
                     [&](uint32_t a, uint32_t b) { return batch.lengths[a] > batch.lengths[b]; });
  std::vector<LptRun> runs;
  for (const uint32_t sequence : sequences) {
    const uint32_t length = batch.lengths[sequence];
    if (told == Told::kPlan)
      runs.push_back({{}, length, batch.num_tiles(length)});
    else if (runs.empty())
      runs.push_back({{}, batch.max_len(), batch.max_tiles()});
    for (uint32_t head = 0; head < batch.shape.num_heads; ++head)
      runs.back().heads.push_back({sequence, head});
  }
  return runs;
}

// The order of a run whose last section has so many K/V heads.
std::vector<Tile> lpt_order(const Batch& batch, const LptRun& run, size_t num_last) {
  const size_t group = batch.shape.heads_per_kv_head, num_heads = run.heads.size();
  std::vector<Tile> order;
  for (size_t begin = 0, end = 0; begin < num_heads; begin = end) {
    end = begin + (1 + num_last) * group <= num_heads ? begin + group : num_heads;
    for (uint32_t tile = run.num_tiles; tile-- > 0;)
      for (size_t i = begin; i < end; ++i)
        if (const auto [sequence, head] = run.heads[i]; tile < batch.num_tiles(batch.lengths[sequence]))
          order.push_back({sequence, head, tile});
  }
  return order;
}

// The last section has a tile for every block, if L2 holds the K/V of so many heads, and hardly more.
bool is_last_section(const Batch& batch, const LptRun& run, size_t num_last) {
  const size_t group = batch.shape.heads_per_kv_head;
  const auto fits = [&](size_t num_kv_heads) {
    return num_kv_heads <= 1 || batch.shape.kv_rows_in_l2 == 0 ||
           num_kv_heads * run.num_keys <= batch.shape.kv_rows_in_l2;
  };
  const size_t num_tiles = num_last * group * run.num_tiles;
  const bool is_all = num_last * group + group > run.heads.size();
  const bool is_enough =
      num_tiles >= kLastTilesPerBlock * batch.shape.num_ctas || is_all || !fits(num_last + 1);
  return fits(num_last) && is_enough &&
         num_tiles <= kLastTilesPerBlock * batch.shape.num_ctas + (group + 1) * run.num_tiles;
}

void expect_lpt_order(const Batch& batch, Told told, const std::vector<Tile>& order) {
  auto begin = order.begin();
  for (const LptRun& run : lpt_runs(batch, told)) {
    const auto num_tiles = static_cast<ptrdiff_t>(lpt_order(batch, run, 1).size());
    ASSERT_LE(num_tiles, order.end() - begin);
    const std::vector<Tile> seen(begin, begin + num_tiles);
    begin += num_tiles;
    bool is_right = num_tiles == 0;
    for (size_t num_last = 1; num_last <= run.heads.size() && !is_right; ++num_last)
      is_right = is_last_section(batch, run, num_last) && seen == lpt_order(batch, run, num_last);
    ASSERT_TRUE(is_right) << testing::PrintToString(seen);
  }
  ASSERT_EQ(begin, order.end());
}

std::vector<Tile> tiles_of(const Batch& batch, const std::vector<SeqInfo>& infos) {
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

template <MHASchedule kSchedule>
void check_batch(const Batch& batch, Told told, std::mt19937& random) {
  if (told == Told::kCommonLength && !batch.has_common_length()) return;
  SCOPED_TRACE(batch.describe() + ", order " + to_string(kSchedule) + ", told " +
               std::to_string(static_cast<int>(told)));
  with_summary<kSchedule>(batch, told, [&](const auto& summary) {
    const auto make_transient = [&](OneThread thread) {
      return TransientScheduler<kSchedule, OneThread>(batch.shape, thread);
    };
    const BlockTiles transient = run_blocks(make_transient, summary, random);
    expect_each_tile_once(batch, transient);
    std::vector<SeqInfo> in_block_order;
    for (const auto& tiles : transient) {
      ASSERT_LE(tiles.size(), 1u);
      in_block_order.insert(in_block_order.end(), tiles.begin(), tiles.end());
    }
    const std::vector<Tile> order = tiles_of(batch, in_block_order);
    if constexpr (kSchedule == LPT)
      expect_lpt_order(batch, told, order);
    else
      EXPECT_EQ(order, expected_order(batch, kSchedule));

    const auto make_strided = [&](OneThread thread) {
      return TileScheduler<kSchedule, OneThread>(batch.shape, thread);
    };
    const BlockTiles strided = run_blocks(make_strided, summary, random);
    EXPECT_EQ(strided.size(), batch.shape.num_ctas);
    expect_each_tile_once(batch, strided);
    if (summary.has_plan())  // no place is empty: every block has its share
      for (uint32_t block = 0; block < strided.size(); ++block) {
        std::vector<Tile> share;
        for (size_t i = block; i < order.size(); i += strided.size()) share.push_back(order[i]);
        ASSERT_EQ(tiles_of(batch, strided[block]), share);
      }

    uint32_t queue = 0;
    const auto make_queued = [&](OneThread thread) {
      return QueuedTileScheduler<kSchedule, OneThread>(&queue, batch.shape, thread);
    };
    for (int launch = 0; launch < 2; ++launch) {
      expect_each_tile_once(batch, run_blocks(make_queued, summary, random));
      ASSERT_EQ(queue, 0u) << "launch " << launch;
    }
  });
}

void check_all_orders(const Batch& batch, std::mt19937& random) {
  for (const Told told : kAllTold) {
    check_batch<DEFAULT>(batch, told, random);
    check_batch<PROMPT_ROTATE>(batch, told, random);
    check_batch<LPT>(batch, told, random);
    if (testing::Test::HasFatalFailure() || testing::Test::HasFailure()) return;
  }
}

TEST(Schedule, EveryTileOnceInThousandsOfRandomBatches) {
  std::mt19937 random(1);
  const auto up_to = [&](uint32_t high) { return static_cast<uint32_t>(random() % (high + 1)); };
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    Batch batch;
    batch.shape = {1 + up_to(9), 1 + up_to(4), 1 + up_to(11), up_to(1) * up_to(60), 1 + up_to(2)};
    batch.spare_tiles = up_to(3) == 0 ? up_to(2) : 0;
    const uint32_t longest = up_to(3) == 0 ? 1 : up_to(40), common = up_to(longest);
    const bool is_common = up_to(2) == 0;
    batch.lengths.resize(up_to(9));
    for (uint32_t& length : batch.lengths) length = is_common ? common : up_to(3) == 0 ? 0 : up_to(longest);
    check_all_orders(batch, random);
  }
}

TEST(Schedule, LargeBatchesAndFarMoreBlocksThanTiles) {
  std::mt19937 random(2);
  check_all_orders({.lengths = std::vector<uint32_t>(300, 1), .shape = {128, 8, 132}}, random);  // decoding
  check_all_orders({.lengths = {5000, 0, 1, 129, 4096, 1, 0}, .shape = {128, 3, 17, 9000, 3}}, random);
  check_all_orders({.lengths = {1}, .shape = {128, 1, 500}}, random);
  check_all_orders({.lengths = {}, .shape = {64, 4, 8}}, random);
  check_all_orders({.lengths = {0, 0, 0}, .shape = {64, 4, 8}}, random);
  check_all_orders({.lengths = {0, 0, 0}, .shape = {64, 4, 8}, .spare_tiles = 3}, random);
}

// Every order in which blocks can come to the queue.

// Calls `check` with every string of block indices, one for each visit to the queue: a block comes until it
// is told a place past the end.
void for_each_interleaving(uint32_t num_blocks, uint32_t num_places,
                           const std::function<void(const std::vector<uint32_t>&)>& check) {
  std::vector<uint32_t> visits;
  std::vector<bool> is_done(std::min(num_blocks, num_places));
  const std::function<void()> extend = [&] {
    if (visits.size() == num_places) return check(visits);
    const bool is_last_visit = num_blocks + visits.size() >= num_places;
    for (uint32_t block = 0; block < is_done.size(); ++block) {
      if (is_done[block]) continue;
      is_done[block] = is_last_visit;
      visits.push_back(block);
      extend();
      visits.pop_back();
      is_done[block] = false;
    }
  };
  extend();
}

template <MHASchedule kSchedule>
uint64_t check_interleavings(const Batch& batch, Told told) {
  uint64_t num_checked = 0;
  with_summary<kSchedule>(batch, told, [&](const auto& summary) {
    const uint32_t num_places = summary.max_idx(batch.shape.num_heads);
    for_each_interleaving(batch.shape.num_ctas, num_places, [&](const std::vector<uint32_t>& visits) {
      if (testing::Test::HasFailure()) return;
      SCOPED_TRACE(batch.describe() + ", order " + to_string(kSchedule) + ", visits " +
                   testing::PrintToString(visits));
      std::vector<std::vector<uint32_t>> places(batch.shape.num_ctas);
      for (uint32_t i = 0; i < visits.size(); ++i) places[visits[i]].push_back(i);
      BlockTiles tiles;
      uint32_t num_all_visits = 0;
      for (uint32_t idx = 0; idx < batch.shape.num_ctas; ++idx) {
        uint32_t num_visits = 0;
        const ReplayedThread thread{{idx}, &places[idx], &num_visits, num_places};
        Block block(QueuedTileScheduler<kSchedule, ReplayedThread>(nullptr, batch.shape, thread), summary);
        block.finish();
        tiles.push_back(block.tiles());
        EXPECT_EQ(num_visits, places[idx].size()) << "block " << idx;
        num_all_visits += num_visits;
      }
      EXPECT_EQ(num_all_visits, num_places) << "the queue is not back at its start";
      expect_each_tile_once(batch, tiles);
      ++num_checked;
    });
  });
  return num_checked;
}

TEST(Schedule, EveryTileOnceInEveryInterleavingOfSmallBatches) {
  uint64_t num_checked = 0;
  const auto check = [&](const std::vector<uint32_t>& lengths) {
    for (uint32_t num_heads = 1; num_heads <= 2; ++num_heads)
      for (uint32_t num_ctas = 1; num_ctas <= 4; ++num_ctas) {
        const Batch batch{lengths, {2, num_heads, num_ctas, 3}};
        const uint32_t num_places = batch.size() * batch.max_tiles() * num_heads;
        if (num_places > (num_ctas <= 2 ? 9u : num_ctas == 3 ? 7u : 6u)) continue;
        num_checked += check_interleavings<DEFAULT>(batch, Told::kRowOffsets);
        num_checked += check_interleavings<PROMPT_ROTATE>(batch, Told::kPlan);
        num_checked += check_interleavings<LPT>(batch, Told::kRowOffsets);
        num_checked += check_interleavings<LPT>(batch, Told::kPlan);
        if (batch.has_common_length()) num_checked += check_interleavings<LPT>(batch, Told::kCommonLength);
      }
  };
  for (uint32_t a = 0; a <= 7; ++a) {
    check({a});
    for (uint32_t b = 0; b <= 7; ++b) {
      check({a, b});
      for (uint32_t c = 0; c <= 3; ++c) check({a, b, c});
    }
  }
  EXPECT_GT(num_checked, 50000u);
}

// The orders, pinned. A tile is written as sequence, head, tile: "0a1".
template <typename Scheduler>
std::string blocks_text(const Batch& batch, Told told) {
  std::string text;
  with_summary<Scheduler::mha_schedule>(batch, told, [&](const auto& summary) {
    const Scheduler first(batch.shape, OneThread{0});
    for (uint32_t idx = 0; idx < first.grid_dim(batch.size(), batch.max_tiles()).num_blocks(); ++idx) {
      Block block(Scheduler(batch.shape, OneThread{idx}), summary);
      block.finish();
      text += text.empty() ? "" : " | ";
      for (size_t i = 0; i < block.tiles().size(); ++i) {
        const SeqInfo& info = block.tiles()[i];
        if (i > 0) text += ' ';
        text += std::to_string(info.prompt_idx);
        text += static_cast<char>('a' + info.head_idx);
        text += std::to_string(info.prompt_offset / batch.shape.tile_shape);
      }
    }
  });
  return text;
}

template <MHASchedule kSchedule>
using Strided = TileScheduler<kSchedule, OneThread>;

TEST(Schedule, OrdersOfACommonLength) {
  const Batch batch{{5, 5}, {2, 2, 1}};  // two sequences of three tiles, two heads
  const Told told = Told::kCommonLength;
  EXPECT_EQ(blocks_text<Strided<DEFAULT>>(batch, told), "0a0 0a1 0a2 0b0 0b1 0b2 1a0 1a1 1a2 1b0 1b1 1b2");
  EXPECT_EQ(blocks_text<Strided<PROMPT_ROTATE>>(batch, told),
            "0a0 0a1 0a2 0b2 0b1 0b0 1a0 1a1 1a2 1b2 1b1 1b0");
  // Head by head, and the last two together.
  EXPECT_EQ(blocks_text<Strided<LPT>>(batch, told), "0a2 0a1 0a0 0b2 0b1 0b0 1a2 1b2 1a1 1b1 1a0 1b0");
  // L2 holds the K/V of one head and a bit.
  EXPECT_EQ(blocks_text<Strided<LPT>>({{5, 5}, {2, 2, 1, 9}}, told),
            "0a2 0a1 0a0 0b2 0b1 0b0 1a2 1a1 1a0 1b2 1b1 1b0");
  // The last section may reach back into the sequence before.
  EXPECT_EQ(blocks_text<Strided<LPT>>({{3, 3, 3}, {2, 1, 1}}, told), "0a1 0a0 1a1 2a1 1a0 2a0");
  // Too little for one: still one, and the heads that share it stay together.
  EXPECT_EQ(blocks_text<Strided<LPT>>({{5, 5}, {2, 2, 1, 1, 2}}, told),
            "0a2 0b2 0a1 0b1 0a0 0b0 1a2 1b2 1a1 1b1 1a0 1b0");
}

TEST(Schedule, OrdersOfARaggedBatch) {
  const Batch batch{{3, 0, 6, 1}, {2, 2, 1, 6}};
  for (const Told told : {Told::kRowOffsets, Told::kPlan}) {
    EXPECT_EQ(blocks_text<Strided<DEFAULT>>(batch, told), "0a0 0a1 0b0 0b1 2a0 2a1 2a2 2b0 2b1 2b2 3a0 3b0");
    EXPECT_EQ(blocks_text<Strided<PROMPT_ROTATE>>(batch, told),
              "0a0 0a1 0b1 0b0 2a0 2a1 2a2 2b2 2b1 2b0 3a0 3b0");
  }
  EXPECT_EQ(blocks_text<Strided<LPT>>(batch, Told::kPlan), "2a2 2a1 2a0 2b2 2b1 2b0 0a1 0b1 0a0 0b0 3a0 3b0");
  EXPECT_EQ(blocks_text<Strided<LPT>>(batch, Told::kRowOffsets),
            "0a1 0a0 0b1 0b0 2a2 2a1 2a0 2b2 2b1 2b0 3a0 3b0");
}

TEST(Schedule, BlocksGoOnByTheirNumberAndSkipWhatIsNotThere) {
  EXPECT_EQ(blocks_text<Strided<DEFAULT>>({{5, 5}, {2, 2, 5}}, Told::kCommonLength),
            "0a0 0b2 1b1 | 0a1 1a0 1b2 | 0a2 1a1 | 0b0 1a2 | 0b1 1b0");
  // Without a plan the places of missing tiles are passed over; with one there are none.
  EXPECT_EQ(blocks_text<Strided<DEFAULT>>({{3, 0, 6}, {2, 1, 2}}, Told::kRowOffsets),
            "0a0 2a0 2a2 | 0a1 2a1");
  EXPECT_EQ(blocks_text<Strided<DEFAULT>>({{1, 0, 6}, {2, 1, 2}}, Told::kRowOffsets), "0a0 2a0 2a2 | 2a1");
  EXPECT_EQ(blocks_text<Strided<DEFAULT>>({{1, 0, 6}, {2, 1, 2}}, Told::kPlan), "0a0 2a1 | 2a0 2a2");
  EXPECT_EQ((blocks_text<TransientScheduler<DEFAULT, OneThread>>({{3, 0, 1}, {2, 1, 9}}, Told::kRowOffsets)),
            "0a0 | 0a1 |  |  | 2a0 | ");
  EXPECT_EQ((blocks_text<TransientScheduler<LPT, OneThread>>({{3, 0, 5}, {2, 1, 9}}, Told::kPlan)),
            "2a2 | 2a1 | 2a0 | 0a1 | 0a0 |  |  |  | ");
}

TEST(Schedule, NumbersKnownAtCompileTimeOverrideThoseOfTheObject) {
  constexpr MHATileShape kFixed{.tile_shape = 2, .num_heads = 2};
  const Batch batch{{5, 5}, {2, 2, 3}};
  const TileScheduler<DEFAULT, OneThread, kFixed> fixed({.tile_shape = 9, .num_heads = 9, .num_ctas = 3});
  EXPECT_EQ(fixed.shape(), batch.shape);
  const MHATileSummary<CommonLength> summary{2, 3, {}, 5};
  Block block(fixed, summary);
  block.finish();
  EXPECT_EQ(tiles_of(batch, block.tiles()), (std::vector<Tile>{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {1, 1, 0}}));
}

TEST(Schedule, NamesAndGrids) {
  using Transient = TransientScheduler<PROMPT_ROTATE, OneThread>;
  using Queued = QueuedTileScheduler<LPT, OneThread>;
  EXPECT_STREQ(Transient::get_type_name(), "TransientScheduler<PROMPT_ROTATE>");
  EXPECT_STREQ(Strided<DEFAULT>::get_type_name(), "TileScheduler<DEFAULT>");
  EXPECT_STREQ(Queued::get_type_name(), "QueuedTileScheduler<LPT>");
  const MHATileShape shape{128, 16, 78};
  EXPECT_EQ(Transient(shape).grid_dim(4, 9), (GridDim{9, 16, 4}));
  EXPECT_EQ(Strided<DEFAULT>(shape).grid_dim(4, 9), (GridDim{78, 1, 1}));
  EXPECT_EQ(Queued(nullptr, shape).grid_dim(4, 9), (GridDim{78, 1, 1}));
}

TEST(Schedule, TheStepsOfASearchNeverPassItsSequence) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    Batch batch{{}, {4, 3, 1}};
    for (size_t sequence = 0; sequence < 100; ++sequence)
      batch.lengths.push_back(random() % 3 == 0 ? random() % 30 : 0);
    Lengths<DEFAULT> lengths(batch);
    const auto summary = lengths.planned();
    uint32_t idx = 0;
    for (uint32_t sequence = 0; sequence < batch.size(); ++sequence)
      for (uint32_t j = 0; j < 3 * batch.num_tiles(batch.lengths[sequence]); ++j, ++idx)
        for (const uint32_t first : {0u, sequence / 2, sequence})
          ASSERT_EQ(summary.find_position(idx, 3, first), sequence) << idx << " from " << first;
    ASSERT_EQ(idx, summary.max_idx(3));
  }
}

TEST(Schedule, CountsThatDoNotFitAreRefused) {
  const MHATileShape shape{128, 16, 132};
  EXPECT_TRUE(check_tile_counts(shape, 64, 8192, 64 * 8192).ok());
  EXPECT_TRUE(check_tile_counts(shape, 0, 0, 0).ok());
  EXPECT_FALSE(check_tile_counts({0, 16, 132}, 1, 1, 1).ok());
  EXPECT_FALSE(check_tile_counts({128, 0, 132}, 1, 1, 1).ok());
  EXPECT_FALSE(check_tile_counts({128, 16, 0}, 1, 1, 1).ok());
  EXPECT_FALSE(check_tile_counts({1, 16, 1}, 1 << 14, 1 << 14, 1 << 28).ok()) << "2^32 tiles";
  EXPECT_FALSE(check_tile_counts(shape, 1 << 20, 1 << 12, uint64_t{1} << 32).ok()) << "2^32 rows";
  EXPECT_FALSE(check_tile_counts({3'000'000'000, 1, 1}, 1, 3'000'000'001, 3'000'000'001).ok())
      << "the last tile begins in 32 bits and ends beyond";
  EXPECT_NE(check_tile_counts(shape, UINT64_MAX, 2, 2).message().find("32 bits"), std::string::npos);
}

TEST(TilePlan, RanksSequencesAndSizesSectionsByTheirKeys) {
  const uint32_t row_offsets[] = {0, 6, 8, 12}, num_keys[] = {4, 40, 20};
  uint32_t order[3], tile_offsets[4], keys_in_order[3];
  const MHATilePlan plan{order, tile_offsets, keys_in_order};
  for (uint32_t i = 0; i < 3; ++i)
    plan_sequence<LPT>(row_offsets, 3, 2, i, plan, [&](uint32_t sequence) { return num_keys[sequence]; });
  EXPECT_EQ((std::array<uint32_t, 3>{order[0], order[1], order[2]}), (std::array<uint32_t, 3>{1, 2, 0}));
  EXPECT_EQ((std::array<uint32_t, 4>{tile_offsets[0], tile_offsets[1], tile_offsets[2], tile_offsets[3]}),
            (std::array<uint32_t, 4>{0, 1, 3, 6}));
  // L2 holds 20 keys: no two heads of the sequence that has as many are worked on together.
  const MHATileShape shape{.tile_shape = 2, .num_heads = 4, .num_ctas = 1, .kv_rows_in_l2 = 20};
  const MHATileSummary<RowOffsets> summary{3, 3, {row_offsets}, 6, plan};
  std::vector<std::array<uint32_t, 2>> tiles;
  for (uint32_t idx = 4; idx < 12; ++idx) {
    const WorkInfo work = summary.unsafe_get_current_work_info<LPT>(shape, idx);
    EXPECT_EQ(work.prompt_idx, 2u);
    tiles.push_back({work.head_idx, work.prompt_offset / 2});
  }
  EXPECT_EQ(tiles, (std::vector<std::array<uint32_t, 2>>{
                       {0, 1}, {0, 0}, {1, 1}, {1, 0}, {2, 1}, {2, 0}, {3, 1}, {3, 0}}));
}

}  // namespace
}  // namespace switchyard
