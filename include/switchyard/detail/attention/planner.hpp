// The planner of an attention block: one warp that asks the scheduler for tiles and computes what each of
// them needs, ahead of the producer, so that no other role waits for the queue or for divisions.
#pragma once

#include "switchyard/detail/attention/shared.hpp"
#include "switchyard/detail/attention/tile_environment.hpp"
#include "switchyard/detail/schedule/any_scheduler.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// To the queue the planner's warp is the producer.
using PlannerEnvironment =
    BlockEnvironment<ProducerThreads{.first_producer_thread = kPlannerWarp * kWarpSize}>;

template <typename Config, typename Schedulers, typename Shared = AttentionShared<Config>>
class AttentionPlanner {
 public:
  SWITCHYARD_DEVICE AttentionPlanner(const AttentionSettings& settings, Shared& shared)
      : settings_(settings), shared_(shared) {}

  SWITCHYARD_DEVICE void run() {
    TileWalk<Schedulers> scheduler(settings_.order, shared_.scheduler_slots);
    do {
      // acquire MM-17: the producer asks for a tile, whose description nobody needs any more; pairs with the
      // release in its ask_planner()
      wait_together(shared_.next_tile_empty, next_tile_.parity() ^ 1);
      next_tile_.advance();
      do scheduler.find_next();
      while (scheduler.is_valid() && is_empty_split(scheduler.seq_info()));
      const AttentionTile tile =  // without tokens: the end
          scheduler.is_valid() ? describe(scheduler.seq_info()) : AttentionTile{};
      if (target::lane_idx() == 0) publish(tile);
      tiles_.advance();
    } while (scheduler.is_valid());
  }

 private:
  SWITCHYARD_DEVICE void publish(const AttentionTile& tile) {
    AttentionTile* next_tile = &shared_.tiles[tiles_.stage()];
    BlocksSeen* blocks_seen = shared_.blocks_seen[tiles_.stage()];
    target::st(next_tile, tile);
    SWITCHYARD_ROLLED
    for (int consumer_idx = 0; consumer_idx < Config::kNumConsumers; ++consumer_idx) {
      // The tile is read again for each consumer: registers are scarce.
      const BlocksSeen seen = find_blocks_seen<Config>(target::ld(next_tile), settings_, consumer_idx);
      target::st(&blocks_seen[consumer_idx], seen);
    }
    // release MM-16: publishes the next tile; pairs with the producer's wait for next_tile_full
    shared_.next_tile_full.arrive();
  }

  // To the scheduler a split is a head: all heads have their first split, then all have their second.
  struct HeadAndSplit {
    uint32_t head, split;
  };
  SWITCHYARD_DEVICE HeadAndSplit part_of(const SeqInfo& info) const {
    if constexpr (Config::kIsDecode) return {info.head_idx % num_heads(), info.head_idx / num_heads()};
    return {info.head_idx / settings_.num_splits, info.head_idx % settings_.num_splits};
  }
  SWITCHYARD_DEVICE uint32_t num_heads() const {
    return settings_.order.shape.num_heads / settings_.num_splits;
  }
  SWITCHYARD_DEVICE uint32_t num_splits_of(uint32_t num_keys) const {
    if (settings_.num_splits == 1 || num_keys <= settings_.split_keys) return 1;
    return (num_keys + settings_.split_keys - 1) / settings_.split_keys;
  }
  // A split that begins behind the last key: nobody waits for it.
  SWITCHYARD_DEVICE bool is_empty_split(const SeqInfo& info) const {
    if constexpr (!Config::kIsDecode) return false;
    if (settings_.num_splits == 1) return false;
    return part_of(info).split >= num_splits_of(settings_.keys.num_keys(info.prompt_idx));
  }

  SWITCHYARD_DEVICE AttentionTile describe(const SeqInfo& info) const {
    AttentionTile tile{};
    tile.first_row = info.start_of_seq + info.prompt_offset;
    const uint32_t num_left = info.seq_len - info.prompt_offset;
    tile.num_tokens = num_left < settings_.tokens_per_tile ? num_left : settings_.tokens_per_tile;
    const HeadAndSplit part = part_of(info);
    tile.first_head = part.head * settings_.heads_per_tile;
    tile.kv_head = tile.first_head / settings_.heads_per_kv_head;
    tile.prompt_idx = info.prompt_idx;
    const KeyLayout& keys = settings_.keys;
    const uint32_t num_keys = keys.num_keys(info.prompt_idx);
    tile.first_key_row =
        keys.row_offsets == nullptr ? info.prompt_idx * keys.max_seq_len : keys.row_offsets[info.prompt_idx];
    tile.first_position = static_cast<int32_t>(num_keys - info.seq_len + info.prompt_offset);
    if constexpr (Config::kIsDecode) tile.split_and_count = part.split | num_splits_of(num_keys) << 16;
    find_blocks<Config>(tile, settings_, part.split, static_cast<int32_t>(num_keys));
    tile.grid_idx = (info.prompt_idx * settings_.order.shape.num_heads + info.head_idx) *
                        settings_.order.max_num_prompt_tiles +
                    info.prompt_offset / settings_.tokens_per_tile;
    return tile;
  }

  const AttentionSettings& settings_;
  Shared& shared_;
  StageCursor<1> next_tile_;
  StageCursor<kNumTiles> tiles_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
