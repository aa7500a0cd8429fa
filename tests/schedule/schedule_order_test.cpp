// The orders of tile schedulers, pinned by tables; names, grids and the counts that are refused.
#include <gtest/gtest.h>

#include "schedule_batch.hpp"
#include "switchyard/detail/schedule/check.hpp"

namespace switchyard::testing_support {
namespace {

// The orders, pinned. A tile is written as sequence, head, tile: "0a1".
template <typename Scheduler>
std::string blocks_text(const Batch& batch, Told told) {
  std::string text;
  with_summary<Scheduler::mha_schedule>(batch, told, [&](const auto& summary) {
    const GridDim grid = Scheduler::grid_dim(batch.size(), batch.max_tiles(), batch.shape);
    for (uint32_t idx = 0; idx < grid.num_blocks(); ++idx) {
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

TEST(Schedule, Names) {
  using Transient = TransientScheduler<PROMPT_ROTATE, OneThread>;
  using Queued = QueuedTileScheduler<LPT, OneThread>;
  EXPECT_STREQ(Transient::get_type_name(), "TransientScheduler<PROMPT_ROTATE>");
  EXPECT_STREQ(Strided<DEFAULT>::get_type_name(), "TileScheduler<DEFAULT>");
  EXPECT_STREQ(Queued::get_type_name(), "QueuedTileScheduler<LPT>");
  for (const TileSchedulerName& scheduler : kTileSchedulers)
    EXPECT_STREQ(to_string(scheduler.kind), scheduler.name);
  for (const OrderName& order : kOrders) {
    EXPECT_STREQ(to_string(order.order), order.name);
    EXPECT_STREQ(option_name(order.order), order.option);
  }
  EXPECT_STREQ(to_string(TileSchedulerKind::kAutomatic), "auto");
  EXPECT_STREQ(option_name(AUTOMATIC), "auto");
}

// Each kind and order of the lists has a type, and that type says so.
TEST(Schedule, EveryNameOfTheListsHasAScheduler) {
  for (const TileSchedulerName& scheduler : kTileSchedulers)
    for (const OrderName& name : kOrders) {
      int num_visits = 0;
      with_order(name.order, [&](auto order) {
        with_scheduler<order.value, OneThread>(scheduler.kind, [&](auto type) {
          using Scheduler = typename decltype(type)::type;
          static_assert(MHATileScheduler<Scheduler>);
          ++num_visits;
          EXPECT_EQ(Scheduler::mha_schedule, name.order);
          EXPECT_NE(std::string(Scheduler::get_type_name()).find(name.type_name), std::string::npos);
        });
      });
      EXPECT_EQ(num_visits, 1) << scheduler.name << ' ' << name.name;
    }
}

TEST(Schedule, AGridHasABlockForEveryTileAndAtMostTheBlocksThereAre) {
  using Transient = TransientScheduler<PROMPT_ROTATE, OneThread>;
  using Queued = QueuedTileScheduler<LPT, OneThread>;
  const MHATileShape shape{128, 16, 132};
  EXPECT_EQ(Transient::grid_dim(4, 9, shape), (GridDim{9 * 16 * 4}));
  EXPECT_EQ(Strided<DEFAULT>::grid_dim(4, 9, shape), (GridDim{132}));
  EXPECT_EQ(Queued::grid_dim(4, 9, shape), (GridDim{132}));
  // Fewer tiles than blocks, and none.
  const MHATileShape few{128, 2, 132};
  EXPECT_EQ(Transient::grid_dim(1, 2, few), (GridDim{4}));
  EXPECT_EQ(Strided<DEFAULT>::grid_dim(1, 2, few), (GridDim{4}));
  EXPECT_EQ(Queued::grid_dim(2, 1, few), (GridDim{4}));
  for (const auto& [batch_size, max_tiles] : {std::array{0u, 9u}, {4u, 0u}, {0u, 0u}}) {
    EXPECT_EQ(Transient::grid_dim(batch_size, max_tiles, shape).num_blocks(), 0u);
    EXPECT_EQ(Strided<DEFAULT>::grid_dim(batch_size, max_tiles, shape).num_blocks(), 0u);
    EXPECT_EQ(Queued::grid_dim(batch_size, max_tiles, shape).num_blocks(), 0u);
  }
}

template <typename Scheduler>
concept KnowsItsGrid = requires {
  Scheduler::grid_dim(4u, 9u);
};

TEST(Schedule, AGridOfNumbersKnownAtCompileTimeNeedsNoShape) {
  constexpr MHATileShape kHeads{.num_heads = 16}, kBlocks{.num_heads = 16, .num_ctas = 132};
  static_assert(TransientScheduler<LPT, OneThread, kHeads>::grid_dim(4, 9) == GridDim{9 * 16 * 4});
  static_assert(TileScheduler<LPT, OneThread, kBlocks>::grid_dim(4, 9) == GridDim{132});
  static_assert(QueuedTileScheduler<LPT, OneThread, kBlocks>::grid_dim(4, 2) == GridDim{128});
  // What is known overrides what is given.
  static_assert(TileScheduler<LPT, OneThread, kHeads>::grid_dim(4, 2, {1, 1, 200}) == GridDim{128});
  static_assert(!KnowsItsGrid<TransientScheduler<LPT, OneThread>>);
  static_assert(!KnowsItsGrid<TileScheduler<LPT, OneThread, kHeads>>);
  static_assert(!KnowsItsGrid<QueuedTileScheduler<LPT, OneThread, kHeads>>);
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
  EXPECT_FALSE(check_tile_counts({1, 8, 1}, 1 << 14, 1 << 14, 1 << 28).ok()) << "more blocks than a grid has";
  EXPECT_TRUE(check_tile_counts({1, 7, 1}, 1 << 14, 1 << 14, 1 << 28).ok());
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
}  // namespace switchyard::testing_support
