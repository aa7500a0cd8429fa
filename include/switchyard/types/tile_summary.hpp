// The work grid of a batch, and the mapping from a place in an order to a tile. There are two: a regular grid
// of max_num_prompt_tiles per head and sequence, in which schedulers skip tiles past the end of a short
// sequence; or, with a plan (detail/schedule/tile_plan.hpp), exactly the tiles that exist. Both give valid
// tiles in the same order, except LPT, which with a plan puts the sequences with the most keys first.
#pragma once

#include <type_traits>

#include "switchyard/detail/schedule/lpt_sections.hpp"
#include "switchyard/types/tile_types.hpp"

namespace switchyard {

// What a summary knows of lengths: all are max_seq_len, or where the rows of each sequence begin.
struct CommonLength {};
struct RowOffsets {
  const uint32_t* row_offsets;  // [batch_size + 1]
};

template <typename T>
concept ValidLength = std::is_same_v<T, CommonLength> || std::is_same_v<T, RowOffsets>;

// plan_sequence() writes these; null: there is no plan.
struct MHATilePlan {
  uint32_t* sequence_order = nullptr;  // [batch_size]: the sequence at each position of the order
  uint32_t* tile_offsets = nullptr;    // [batch_size + 1]: the tiles of one head in the sequences before it
  uint32_t* num_keys = nullptr;  // [batch_size]: of the sequence at each position; null: as many as queries
};

// A batch, as a scheduler sees it. Kernels read what its pointers point to: memory of the device, which must
// stay valid until the launch has ended.
template <ValidLength Lengths>
struct MHATileSummary {
  uint32_t batch_size = 0;
  uint32_t max_num_prompt_tiles = 0;  // of the longest sequence
  Lengths valid_length{};
  uint32_t max_seq_len = 0;
  MHATilePlan plan{};
  uint32_t max_num_keys = 0;  // of a sequence; 0: as many as queries

  SWITCHYARD_HD bool has_plan() const { return plan.tile_offsets != nullptr; }

  // How many places an order has. Some hold no tile unless there is a plan.
  SWITCHYARD_HD uint32_t max_idx(uint32_t num_heads) const {
    return num_heads * (has_plan() ? plan.tile_offsets[batch_size] : batch_size * max_num_prompt_tiles);
  }

  SWITCHYARD_HD uint32_t seq_len(uint32_t prompt_idx) const {
    if constexpr (std::is_same_v<Lengths, CommonLength>)
      return max_seq_len;
    else
      return valid_length.row_offsets[prompt_idx + 1] - valid_length.row_offsets[prompt_idx];
  }

  // Returns the sequence of a tile; for a tile that does not exist, one that is_valid() rejects.
  SWITCHYARD_HD SeqInfo seq_info(const WorkInfo& work) const {
    SeqInfo info{seq_len(work.prompt_idx), 0, work.prompt_offset, work.head_idx, work.prompt_idx};
    if constexpr (std::is_same_v<Lengths, CommonLength>)
      info.start_of_seq = work.prompt_idx * max_seq_len;
    else
      info.start_of_seq = valid_length.row_offsets[work.prompt_idx];
    return info;
  }

  // Finds the position of the sequence that holds place `idx`, by strides that double from `first_position`
  // on: places only grow, so the next one is near.
  SWITCHYARD_HD uint32_t find_position(uint32_t idx, uint32_t num_heads, uint32_t first_position) const {
    const uint32_t column = idx / num_heads;  // tile_offsets[p] <= column < tile_offsets[p + 1]
    uint32_t low = first_position, stride = 1;
    while (low + stride < batch_size && plan.tile_offsets[low + stride] <= column) {
      low += stride;
      stride *= 2;
    }
    for (uint32_t high = low + stride < batch_size ? low + stride : batch_size; high - low > 1;) {
      const uint32_t middle = low + (high - low) / 2;
      (plan.tile_offsets[middle] <= column ? low : high) = middle;
    }
    return low;
  }

  // Returns the tile at place `idx`, which must be below max_idx; it is valid if its sequence has such a
  // tile.
  template <MHASchedule kSchedule>
  SWITCHYARD_HD WorkInfo unsafe_get_current_work_info(const MHATileShape& shape, uint32_t idx,
                                                      uint32_t first_position = 0) const {
    if (has_plan()) return planned_work_info<kSchedule>(shape, idx, first_position);
    const uint32_t num_tiles = max_num_prompt_tiles;
    uint32_t pair, tile;  // pairs of sequence and head, head fastest
    if constexpr (kSchedule == MHASchedule::LPT) {
      const HeadAndTile found = tile_in_sections(shape, idx, max_num_keys == 0 ? max_seq_len : max_num_keys,
                                                 num_tiles, batch_size * shape.num_heads);
      pair = found.head;
      tile = found.tile;
    } else {
      static_assert(kSchedule == MHASchedule::DEFAULT || kSchedule == MHASchedule::PROMPT_ROTATE);
      pair = idx / num_tiles;
      tile = idx % num_tiles;
    }
    const uint32_t head_idx = pair % shape.num_heads;
    if (kSchedule == MHASchedule::PROMPT_ROTATE && head_idx % 2 == 1) tile = num_tiles - 1 - tile;
    WorkInfo work{tile * shape.tile_shape, head_idx, pair / shape.num_heads, false};
    work.is_valid_tile = work.prompt_offset < seq_len(work.prompt_idx);
    return work;
  }
  template <MHASchedule kSchedule>
  SWITCHYARD_HD WorkInfo get_current_work_info(const MHATileShape& shape, const MHATileState& state) const {
    if (!state.is_valid()) return WorkInfo{};
    return unsafe_get_current_work_info<kSchedule>(shape, state.idx, state.first_position);
  }

 private:
  struct HeadAndTile {
    uint32_t head;
    uint32_t tile;
  };

  SWITCHYARD_HD static HeadAndTile tile_in_sections(const MHATileShape& shape, uint32_t idx,
                                                    uint32_t num_keys, uint32_t num_tiles,
                                                    uint32_t num_heads) {
    const uint32_t first_of_last = first_head_of_last_section(shape, num_keys, num_tiles, num_heads);
    uint32_t first_head = first_of_last, width = num_heads - first_of_last;
    if (idx < first_of_last * num_tiles) {
      width = shape.heads_per_kv_head == 0 ? 1 : shape.heads_per_kv_head;
      first_head = idx / (width * num_tiles) * width;
    }
    const uint32_t in_section = idx - first_head * num_tiles;
    return {first_head + in_section % width, num_tiles - 1 - in_section / width};
  }

  template <MHASchedule kSchedule>
  SWITCHYARD_HD WorkInfo planned_work_info(const MHATileShape& shape, uint32_t idx,
                                           uint32_t first_position) const {
    const uint32_t position = find_position(idx, shape.num_heads, first_position);
    const uint32_t begin = plan.tile_offsets[position];
    const uint32_t num_tiles = plan.tile_offsets[position + 1] - begin;
    const uint32_t in_sequence = idx - begin * shape.num_heads;
    const uint32_t prompt_idx = plan.sequence_order[position];
    uint32_t head_idx, tile;
    if constexpr (kSchedule == MHASchedule::LPT) {
      const uint32_t num_keys = plan.num_keys == nullptr ? seq_len(prompt_idx) : plan.num_keys[position];
      const HeadAndTile found = tile_in_sections(shape, in_sequence, num_keys, num_tiles, shape.num_heads);
      head_idx = found.head;
      tile = found.tile;
    } else {
      static_assert(kSchedule == MHASchedule::DEFAULT || kSchedule == MHASchedule::PROMPT_ROTATE);
      head_idx = in_sequence / num_tiles;
      tile = in_sequence % num_tiles;
      if (kSchedule == MHASchedule::PROMPT_ROTATE && head_idx % 2 == 1) tile = num_tiles - 1 - tile;
    }
    return {tile * shape.tile_shape, head_idx, prompt_idx, true};
  }
};

}  // namespace switchyard
