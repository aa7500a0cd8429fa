// On the host, before a launch: can the tiles of a batch be counted in 32 bits?
#pragma once

#include "switchyard/base/checked.hpp"
#include "switchyard/base/status.hpp"
#include "switchyard/schedule/types.hpp"

namespace switchyard {

inline Status check_tile_counts(const MHATileShape& shape, uint64_t batch_size, uint64_t max_seq_len,
                                uint64_t num_rows) {
  if (shape.tile_shape == 0 || shape.num_heads == 0 || shape.num_ctas == 0)
    return invalid_argument("tiles of %u rows, %u heads, %u blocks: each must be at least 1",
                            shape.tile_shape, shape.num_heads, shape.num_ctas);
  const uint64_t num_tiles = max_seq_len / shape.tile_shape + (max_seq_len % shape.tile_shape != 0);
  // A block's last step leads past the end by as many places as there are blocks; a last tile, past its
  // sequence.
  const CheckedSize places = CheckedSize(batch_size) * CheckedSize(shape.num_heads) * CheckedSize(num_tiles) +
                             CheckedSize(shape.num_ctas);
  const CheckedSize last_row = CheckedSize(num_tiles) * CheckedSize(shape.tile_shape);
  for (const CheckedSize& count : {CheckedSize(num_rows), places, last_row})
    if (!count.ok() || count.value() > UINT32_MAX)
      return invalid_argument(
          "%llu sequences of up to %llu rows, %llu rows in all, %u heads, tiles of %u rows, %u blocks: more "
          "rows or tiles than 32 "
          "bits can count",
          static_cast<unsigned long long>(batch_size), static_cast<unsigned long long>(max_seq_len),
          static_cast<unsigned long long>(num_rows), shape.num_heads, shape.tile_shape, shape.num_ctas);
  return Status();
}

}  // namespace switchyard
