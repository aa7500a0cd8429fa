// How LPT divides the heads of a batch into sections.
#pragma once

#include "switchyard/types/tile_types.hpp"

namespace switchyard {

// LPT goes through the heads in sections, each from the longest tiles of all its heads to the shortest. A
// section is what shares a K/V head: long and short tiles are then mixed, and the traffic of queries and
// outputs, of which short tiles have more for their time, is even. Only the last section is larger, so that
// all blocks end together on short tiles: kLastTilesPerBlock for each block, as long as L2 holds the K/V of
// its heads.
inline constexpr uint32_t kLastTilesPerBlock = 1;

SWITCHYARD_HD constexpr uint32_t first_head_of_last_section(const MHATileShape& shape, uint32_t num_keys,
                                                            uint32_t num_tiles, uint32_t num_heads) {
  const uint32_t group = shape.heads_per_kv_head == 0 ? 1 : shape.heads_per_kv_head;
  const uint32_t num_groups = num_heads / group;
  uint32_t num_last = kLastTilesPerBlock * (shape.num_ctas / num_tiles + 1) / group + 1;
  if (shape.kv_rows_in_l2 != 0 && num_keys != 0 && num_last > shape.kv_rows_in_l2 / num_keys)
    num_last = shape.kv_rows_in_l2 / num_keys;
  if (num_last == 0) num_last = 1;
  return num_last < num_groups ? (num_groups - num_last) * group : 0;
}

}  // namespace switchyard
