// The tile schedulers against plain loops: every tile that is there exactly once, none that is not, in the
// order that was asked for, whatever the shape and however the blocks come to the queue.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "schedule_batch.hpp"
#include "sweep.hpp"

namespace switchyard::testing_support {
namespace {

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
    EXPECT_EQ(strided.size(),
              std::min(batch.shape.num_ctas, batch.size() * batch.shape.num_heads * batch.max_tiles()));
    expect_each_tile_once(batch, strided);
    if (summary.has_plan())  // no place is empty: every block has its share
      for (uint32_t block = 0; block < strided.size(); ++block) {
        std::vector<Tile> share;
        for (size_t i = block; i < order.size(); i += batch.shape.num_ctas) share.push_back(order[i]);
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
    for (const OrderName& name : kOrders)
      with_order(name.order, [&](auto order) { check_batch<order.value>(batch, told, random); });
    if (testing::Test::HasFatalFailure() || testing::Test::HasFailure()) return;
  }
}

TEST(Schedule, EveryTileOnceInThousandsOfRandomBatches) {
  std::mt19937 random(1);
  const auto up_to = [&](uint32_t high) { return static_cast<uint32_t>(random() % (high + 1)); };
  for (int i = 0; i < (kFewRepeats ? 300 : 3000) && !HasFailure(); ++i) {
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
    using Scheduler = QueuedTileScheduler<kSchedule, ReplayedThread>;
    const uint32_t num_blocks =
        Scheduler::grid_dim(batch.size(), batch.max_tiles(), batch.shape).num_blocks();
    for_each_interleaving(batch.shape.num_ctas, num_places, [&](const std::vector<uint32_t>& visits) {
      if (testing::Test::HasFailure()) return;
      SCOPED_TRACE(batch.describe() + ", order " + to_string(kSchedule) + ", visits " +
                   testing::PrintToString(visits));
      std::vector<std::vector<uint32_t>> places(num_blocks);
      for (uint32_t i = 0; i < visits.size(); ++i) places[visits[i]].push_back(i);
      BlockTiles tiles;
      uint32_t num_all_visits = 0;
      for (uint32_t idx = 0; idx < num_blocks; ++idx) {
        uint32_t num_visits = 0;
        const ReplayedThread thread{{idx}, &places[idx], &num_visits, num_places};
        Block block(Scheduler(nullptr, batch.shape, thread), summary);
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
  constexpr uint32_t kLongest = kFewRepeats ? 4 : 7;
  for (uint32_t a = 0; a <= kLongest; ++a) {
    check({a});
    for (uint32_t b = 0; b <= kLongest; ++b) {
      check({a, b});
      for (uint32_t c = 0; c <= 3; ++c) check({a, b, c});
    }
  }
  EXPECT_GT(num_checked, kFewRepeats ? 5000u : 50000u);
}

}  // namespace
}  // namespace switchyard::testing_support
